// Every rank in a table, and ranks by steps: which rank is slow, and when. Of the table only the rows in sight exist,
// and the heatmap is a canvas, so that thousands of ranks stay light.
import { useEffect, useRef, useState } from "preact/hooks";
import { colour, useEvents, useTheme, useWidth } from "./chart";
import { type Heatmap, type Num, type Phase, shownPhases, type Summary } from "./data";
import * as fmt from "./fmt";
import { Card, Ribbon } from "./parts";

const ROW = 30;
const IN_SIGHT = 14;
const SPARE = 6;
const MOST_PRINTED = 256;

type Column = { key: string; label: string; value: (rank: string) => Num | string; show: (value: Num) => string };

function columnsOf({ step_time, step_memory, process }: Summary, phases: Phase[]): Column[] {
  const { ranks } = step_time;
  const time = (key: string, label: string): Column => {
    return { key, label, value: (rank) => ranks[rank]?.metrics[key] ?? null, show: fmt.ms };
  };
  const measured = phases.filter(({ key }) => Object.values(ranks).some((member) => member.metrics[key] != null));
  const held = step_memory.window.memory === "device" ? "peak_allocated_bytes" : "rss_bytes";
  const memory = (rank: string): Num => step_memory.ranks[rank]?.metrics[held] ?? null;
  const cpu = (rank: string): Num => process.ranks[rank]?.metrics.cpu_percent ?? null;
  return [
    { key: "rank", label: "Rank", value: Number, show: fmt.rank },
    { key: "host", label: "Host", value: (rank) => ranks[rank]?.identity.host ?? "", show: String },
    time("step_ms", "Step Time"),
    ...measured.map(({ key, label }) => time(key, label)),
    { key: "memory", label: "Memory", value: memory, show: fmt.size },
    { key: "cpu", label: "CPU", value: cpu, show: fmt.percent },
  ];
}

function compare(a: Num | string, b: Num | string): number {
  if (typeof a === "string" || typeof b === "string")
    return String(a ?? "").localeCompare(String(b ?? ""), "en", { numeric: true });
  return (a ?? -Infinity) - (b ?? -Infinity) || 0;
}

export function RankTable({ summary }: { summary: Summary }) {
  const phases = shownPhases(summary);
  const columns = columnsOf(summary, phases);
  const [[by, way], setOrder] = useState<[string, 1 | -1]>(["", 1]);
  const [top, setTop] = useState(0);
  const [isPrinting, setPrinting] = useState(false); // paper does not scroll
  useEvents(["beforeprint", "afterprint"], (event) => setPrinting(event.type === "beforeprint"));
  const sorted = columns.find((column) => column.key === by);
  const ranks = Object.keys(summary.step_time.ranks);
  if (ranks.length < 2) return null;
  const named = new Set(summary.primary_diagnosis.ranks.map(String));
  const apart = (a: string, b: string): number =>
    sorted ? way * compare(sorted.value(a), sorted.value(b)) : Number(named.has(b)) - Number(named.has(a));
  ranks.sort((a, b) => apart(a, b) || Number(a) - Number(b));
  const metrics = (rank: string): Record<string, Num> => summary.step_time.ranks[rank]?.metrics ?? {};
  const longest = ranks.reduce((most, rank) => Math.max(most, metrics(rank).step_ms ?? 0), 0);
  const size = isPrinting ? MOST_PRINTED : IN_SIGHT + 2 * SPARE;
  const first = isPrinting ? 0 : Math.max(0, Math.min(Math.floor(top / ROW) - SPARE, ranks.length - size));
  const shown = ranks.slice(first, first + size);
  const all = Math.max(summary.run.ranks.used.length, ranks.length);
  const about =
    ranks.length < all
      ? `${fmt.count(ranks.length)} of ${fmt.count(all)} ranks: those that a finding names, and some others`
      : `${fmt.count(all)} ranks`;
  const sort = (key: string): void =>
    setOrder([key, by === key ? (way === 1 ? -1 : 1) : key === "rank" || key === "host" ? 1 : -1]);
  const kind = (key: string): string => (key === "host" ? "words" : "number");
  const gap = (rows: number) => (
    <tr aria-hidden="true" class="gap" style={{ height: `${isPrinting ? 0 : Math.max(0, rows) * ROW}px` }} />
  );
  return (
    <Card id="ranks" title="Ranks" about={about}>
      <div
        class="scroll tall"
        tabIndex={0}
        role="region"
        aria-label="Numbers of each rank"
        style={{ maxHeight: isPrinting ? "none" : `${ROW * (IN_SIGHT + 1)}px` }}
        onScroll={(event) => setTop((event.currentTarget as HTMLElement).scrollTop)}
      >
        <table class="ranks" aria-rowcount={ranks.length + 1}>
          <caption class="hidden">Means of each rank. The buttons in the head sort the rows.</caption>
          <thead>
            <tr>
              {columns.map(({ key, label }) => {
                const [order, arrow] = by !== key ? ["none", ""] : way === 1 ? ["ascending", " ▲"] : ["descending", " ▼"];
                return (
                  <th key={key} scope="col" class={kind(key)} aria-sort={order as "none"}>
                    <button type="button" onClick={() => sort(key)}>
                      {label}
                      <span aria-hidden="true">{arrow}</span>
                    </button>
                  </th>
                );
              })}
              <th scope="col" class="words split">
                Split
              </th>
            </tr>
          </thead>
          <tbody>
            {gap(first)}
            {shown.map((rank, at) => {
              const pieces = phases.map((phase) => ({ phase, value: metrics(rank)[phase.key] ?? null }));
              return (
                <tr key={rank} class={named.has(rank) ? "named" : ""} aria-rowindex={first + at + 2}>
                  <th scope="row" class="number">
                    {named.has(rank) ? "▸ " : ""}
                    {fmt.rank(Number(rank))}
                  </th>
                  {columns.slice(1).map(({ key, value, show }) => (
                    <td key={key} class={kind(key)}>
                      {show(value(rank) as Num)}
                    </td>
                  ))}
                  <td class="words split">
                    <Ribbon thin label={`Rank ${rank}`} whole={longest} pieces={pieces} />
                  </td>
                </tr>
              );
            })}
            {gap(ranks.length - first - shown.length)}
          </tbody>
        </table>
      </div>
      {isPrinting && ranks.length > MOST_PRINTED && <p class="foot">The first {MOST_PRINTED} ranks are printed.</p>}
      {named.size > 0 && <p class="foot">▸ named by the verdict; first, until you sort the rows</p>}
    </Card>
  );
}

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

type Cell = { x: number; y: number };

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
  const { heatmap: map } = summary.series;
  const { used } = summary.run.ranks;
  const canvas = useRef<HTMLCanvasElement>(null);
  const [cell, setCell] = useState<Cell | null>(null);
  const [wide, theme] = [useWidth(canvas), useTheme()];
  const named = summary.primary_diagnosis.ranks;
  const rows = map.own_ms.length;
  const scale = scaleOf(map);
  useEffect(() => {
    if (canvas.current) draw(canvas.current, map, scale, named, cell);
  }, [map, cell, wide, theme]);
  const move = (x: number, y: number): void =>
    setCell({ x: Math.min(Math.max(x, 0), map.steps.length - 1), y: Math.min(Math.max(y, 0), rows - 1) });
  const atPointer = (event: PointerEvent): void => {
    const box = (event.currentTarget as HTMLCanvasElement).getBoundingClientRect();
    const across = (event.clientX - box.left - MARGIN.left) / (box.width - MARGIN.left - MARGIN.right);
    const down = (event.clientY - box.top - MARGIN.top) / heightOf(rows);
    move(Math.floor(across * map.steps.length), Math.floor(down * rows));
  };
  const atKey = (event: KeyboardEvent): void => {
    const by = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (!by) return;
    event.preventDefault();
    move((cell?.x ?? 0) + (by[0] ?? 0), (cell?.y ?? 0) + (by[1] ?? 0));
  };
  const hint = rows < used.length
    ? "Each row stands for neighbouring ranks and shows the slowest of them."
    : "Point at a cell, or use the arrow keys.";
  const alt =
    `Heatmap of ${used.length} ranks over steps, from ${fmt.ms(scale.low)} to ${fmt.ms(scale.high)}` +
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
        {cell ? describe(map, cell, used[used.length - 1] ?? 0, summary.step_time.window.end_step ?? 0) : hint}
      </p>
      <div class="ramp" aria-hidden="true">
        <span>{fmt.ms(scale.low)} (fast)</span>
        <i style={{ background: `linear-gradient(90deg, ${[0, 0.2, 0.4, 0.6, 0.8, 1].map(rampAt).join(", ")})` }} />
        <span>{fmt.ms(scale.high)} (slow)</span>
      </div>
    </Card>
  );
}
