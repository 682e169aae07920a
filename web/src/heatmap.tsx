// Ranks by steps: which rank is slow, and when. Drawn on a canvas, so that thousands of ranks stay light.
import { useEffect, useRef, useState } from "preact/hooks";
import { colour, useTheme } from "./chart";
import * as fmt from "./fmt";
import { Card } from "./parts";
import type { Heatmap, Summary } from "./types";

/** From fast to slow, by brightness too: the order is visible without seeing colours. */
const RAMP = [
  [24, 32, 58],
  [46, 74, 122],
  [72, 126, 142],
  [138, 178, 108],
  [236, 190, 74],
  [255, 238, 178],
] as const;
const MARGIN = { left: 62, right: 62, top: 6, bottom: 24 };

function rampAt(part: number): string {
  const place = Math.min(Math.max(part, 0), 1) * (RAMP.length - 1);
  const low = Math.min(Math.floor(place), RAMP.length - 2);
  const [from, to] = [RAMP[low] ?? RAMP[0], RAMP[low + 1] ?? RAMP[0]];
  const mix = from.map((value, at) => Math.round(value + (place - low) * ((to[at] ?? 0) - value)));
  return `rgb(${mix.join(" ")})`;
}

type Scale = { low: number; high: number; of: (value: number) => number };

/** Colours follow the logarithm: a stall does not make everything else look the same. */
function scaleOf(map: Heatmap): Scale {
  const values = map.own_ms.flat().filter((value): value is number => value != null && value > 0);
  const [low, high] = values.reduce(([a, b], value) => [Math.min(a, value), Math.max(b, value)], [Infinity, 0]);
  // Equal ranks should look equal: noise of a few percent does not use the whole range of colours.
  const span = Math.max(Math.log(high / low), Math.log(1.5));
  return { low, high, of: (value) => Math.log(Math.max(value, low) / low) / span };
}

const heightOf = (rows: number): number => Math.min(22, Math.max(2, Math.floor(300 / rows))) * rows;

function draw(canvas: HTMLCanvasElement, map: Heatmap, scale: Scale, named: number[], cell: Cell | null): void {
  const wide = canvas.clientWidth;
  const rows = map.own_ms.length;
  const tall = heightOf(rows);
  const context = canvas.getContext("2d");
  if (!context || !wide) return;
  canvas.width = wide * devicePixelRatio;
  canvas.height = (tall + MARGIN.top + MARGIN.bottom) * devicePixelRatio;
  context.scale(devicePixelRatio, devicePixelRatio);
  context.translate(MARGIN.left, MARGIN.top);
  const width = wide - MARGIN.left - MARGIN.right;
  const [cellWide, cellTall] = [width / map.steps.length, tall / rows];
  map.own_ms.forEach((row, y) =>
    row.forEach((value, x) => {
      context.fillStyle = value == null ? colour("--grid") : rampAt(scale.of(value));
      const left = Math.floor(x * cellWide);
      context.fillRect(left, y * cellTall, Math.ceil((x + 1) * cellWide) - left, Math.ceil(cellTall));
    }),
  );
  context.fillStyle = colour("--muted");
  context.font = `11px ${colour("--font")}`;
  context.textBaseline = "middle";
  context.textAlign = "right";
  const every = Math.ceil(rows / Math.max(1, Math.floor(tall / 26)));
  for (let y = 0; y < rows; y += every) {
    context.fillText(fmt.rank(map.first_ranks[y]), -6, (y + 0.5) * cellTall);
  }
  context.textAlign = "center";
  const apart = Math.max(1, Math.ceil(map.steps.length / Math.max(1, Math.floor(width / 70))));
  for (let x = 0; x < map.steps.length; x += apart) {
    context.fillText(fmt.plain(map.steps[x]), (x + 0.5) * cellWide, tall + 13);
  }
  context.textAlign = "left";
  context.fillStyle = colour("--text");
  let last = -Infinity;
  for (const rank of named) {
    const y = (rowOf(map, rank) + 0.5) * cellTall;
    if (y - last > 11) context.fillText(`◀ r${rank}`, width + 4, y);
    last = Math.max(last, y);
  }
  if (cell) {
    context.strokeStyle = colour("--text");
    context.lineWidth = 2;
    const [w, h] = [Math.max(cellWide, 5), Math.max(cellTall, 5)];
    context.strokeRect((cell.x + 0.5) * cellWide - w / 2, (cell.y + 0.5) * cellTall - h / 2, w, h);
  }
}

function rowOf(map: Heatmap, rank: number): number {
  const after = map.first_ranks.findIndex((first) => first > rank);
  return after < 0 ? map.first_ranks.length - 1 : after - 1;
}

type Cell = { x: number; y: number };

function describe(map: Heatmap, cell: Cell, lastRank: number, lastStep: number): string {
  const [first, next] = [map.first_ranks[cell.y] ?? 0, map.first_ranks[cell.y + 1]];
  const end = next === undefined ? lastRank : next - 1;
  const who = end > first ? `r${first} to r${end} (slowest: r${map.worst_ranks[cell.y]})` : `r${first}`;
  const step = map.steps[cell.x] ?? 0;
  const until = (map.steps[cell.x + 1] ?? lastStep + 1) - 1;
  const when = until > step ? `steps ${step} to ${until}` : `step ${step}`;
  return `${who}, ${when}: ${fmt.ms(map.own_ms[cell.y]?.[cell.x])}`;
}

export function RankHeatmap({ summary }: { summary: Summary }) {
  const map = summary.series.heatmap;
  const canvas = useRef<HTMLCanvasElement>(null);
  const [cell, setCell] = useState<Cell | null>(null);
  const [wide, setWide] = useState(0);
  const theme = useTheme();
  const rows = map?.own_ms.length ?? 0;
  const named = summary.primary_diagnosis.ranks;
  const ranks = summary.run.ranks.used;
  const scale = rows ? scaleOf(map) : { low: 0, high: 0, of: () => 0 };
  useEffect(() => {
    const element = canvas.current;
    if (!element) return;
    const watcher = new ResizeObserver(() => setWide(element.clientWidth));
    watcher.observe(element);
    return () => watcher.disconnect();
  }, []);
  useEffect(() => {
    if (canvas.current) draw(canvas.current, map, scale, named, cell);
  }, [map, cell, wide, theme]);
  const move = (x: number, y: number): void =>
    setCell({ x: Math.min(Math.max(x, 0), map.steps.length - 1), y: Math.min(Math.max(y, 0), rows - 1) });
  const atPointer = (event: PointerEvent): void => {
    const box = (event.currentTarget as HTMLCanvasElement).getBoundingClientRect();
    const inside = (event.clientX - box.left - MARGIN.left) / (box.width - MARGIN.left - MARGIN.right);
    move(
      Math.floor(inside * map.steps.length),
      Math.floor(((event.clientY - box.top - MARGIN.top) / heightOf(rows)) * rows),
    );
  };
  const atKey = (event: KeyboardEvent): void => {
    const by = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (!by) return;
    event.preventDefault();
    move((cell?.x ?? 0) + (by[0] ?? 0), (cell?.y ?? 0) + (by[1] ?? 0));
  };
  const grouped = rows < ranks.length;
  const alt =
    `Heatmap of ${ranks.length} ranks over steps, from ${fmt.ms(scale.low)} to ${fmt.ms(scale.high)}` +
    (named.length ? `; the verdict names ${named.map((rank) => fmt.rank(rank)).join(", ")}` : "");
  return (
    <Card id="heatmap" title="Ranks over steps" about="step time without waiting for other ranks">
      <canvas
        ref={canvas}
        class="heatmap"
        style={{ height: `${heightOf(rows) + MARGIN.top + MARGIN.bottom}px` }}
        role="img"
        aria-label={`${alt}. Use the arrow keys to read single cells.`}
        tabIndex={0}
        onPointerMove={atPointer}
        onPointerLeave={() => setCell(null)}
        onKeyDown={atKey}
      />
      <p class="readout" role="status">
        {cell
          ? describe(map, cell, ranks[ranks.length - 1] ?? 0, summary.step_time.window.end_step ?? 0)
          : grouped
            ? `Each row stands for neighbouring ranks and shows the slowest of them.`
            : "Point at a cell, or use the arrow keys."}
      </p>
      <div class="ramp" aria-hidden="true">
        <span>{fmt.ms(scale.low)} (fast)</span>
        <i style={{ background: `linear-gradient(90deg, ${[0, 0.2, 0.4, 0.6, 0.8, 1].map(rampAt).join(", ")})` }} />
        <span>{fmt.ms(scale.high)} (slow)</span>
      </div>
    </Card>
  );
}
