// Line charts by uPlot. The numbers come as they are; only stacking and marks are layout.
import type { RefObject } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import type { Num } from "./data";

export interface Line {
  label: string;
  values: Num[];
  colour: string;
  dash?: boolean;
  area?: boolean; // stacked on the areas before it
  axis?: "right";
}

type Mark = { at: number; letter: string };

interface ChartProps {
  x: Num[];
  xLabel: string;
  lines: Line[];
  show: (value: Num) => string;
  showRight?: (value: Num) => string;
  marks?: Mark[];
  alt: string;
  height?: number;
  min?: number; // no zero: memory trends would look flat
}

const HEIGHT = 220;
const CHARACTER = 6.6;

/** Counts up whenever the colours of the page change, so that canvases are drawn again. */
export function useTheme(): number {
  const [version, setVersion] = useState(0);
  const again = (): void => setVersion((old) => old + 1);
  useEvents(["change"], again, matchMedia("(prefers-color-scheme: dark)"));
  useEvents(["traceml-theme"], again);
  return version;
}

/** Calls back on these events for as long as the component is there. */
export function useEvents(names: string[], told: (event: Event) => void, source: EventTarget = window): void {
  useEffect(() => {
    names.forEach((name) => source.addEventListener(name, told));
    return () => names.forEach((name) => source.removeEventListener(name, told));
  }, []);
}

/** The width of an element, as it changes; 0 until it is known. */
export function useWidth(place: RefObject<HTMLElement | null>): number {
  const [wide, setWide] = useState(0);
  useEffect(() => {
    const watcher = new ResizeObserver(() => setWide(place.current?.clientWidth ?? 0));
    if (place.current) watcher.observe(place.current);
    return () => watcher.disconnect();
  }, []);
  return wide;
}

/** The value of a CSS variable, such as `--text`. */
export const colour = (name: string): string =>
  getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const inkOf = (line: Line): string => (line.colour.startsWith("--") ? colour(line.colour) : line.colour);

function stacked(lines: Line[]): (number | null)[][] {
  let below: number[] | null = null;
  return lines.map((line) => {
    if (!line.area) return line.values;
    const base: number[] = below ?? line.values.map(() => 0);
    below = line.values.map((value, at) => (value ?? 0) + (base[at] ?? 0));
    return below;
  });
}

function drawMarks(u: uPlot, marks: Mark[], ratio: number): void {
  const { ctx, bbox } = u;
  let last = -Infinity;
  ctx.save();
  ctx.strokeStyle = colour("--mark");
  ctx.fillStyle = colour("--text");
  ctx.font = `${10 * ratio}px ${colour("--font")}`;
  ctx.textAlign = "center";
  ctx.setLineDash([2 * ratio, 3 * ratio]);
  for (const mark of marks) {
    const x = Math.round(u.valToPos(mark.at, "x", true));
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    if (x - last < 4 * ratio) continue; // denser marks would be a grey area
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    if (x - last > 12 * ratio) ctx.fillText(mark.letter, x, bbox.top - 3 * ratio);
    last = x;
  }
  ctx.restore();
}

function axis(show: (value: Num) => string, side: 1 | 3, scale: string): uPlot.Axis {
  return {
    scale,
    side,
    stroke: colour("--muted"),
    grid: { stroke: colour("--grid"), width: 1, show: side === 3 },
    ticks: { show: false },
    font: `11px ${colour("--font")}`,
    values: (_u, ticks) => ticks.map((tick) => (Math.abs(tick) < 1e-9 ? "0" : show(tick).replace(/\.0+ /, " "))),
    size: (_u, values) => 14 + CHARACTER * Math.max(0, ...(values ?? []).map((text) => text.length)),
    space: 36,
  };
}

/** How to draw it. What is shown for the pointer's place, and the marks, follow the latest numbers. */
function options(latest: { current: ChartProps }, wide: number): uPlot.Options {
  const props = latest.current;
  const { lines, show, showRight = show } = props;
  const stack = lines.map((line, at) => (line.area ? at + 1 : 0)).filter(Boolean);
  return {
    width: wide,
    height: props.height ?? HEIGHT,
    padding: [props.marks ? 16 : 8, 12, 0, 0],
    cursor: { y: false },
    scales: {
      x: { time: false },
      y: { range: (_u, low, high) => (props.min === undefined ? [0, (high || 1) * 1.06] : padded(low, high)) },
      right: { range: (_u, _low, high) => [0, (high || 1) * 1.06] },
    },
    axes: [
      {
        stroke: colour("--muted"),
        grid: { show: false },
        ticks: { stroke: colour("--grid"), size: 4 },
        font: `11px ${colour("--font")}`,
        label: props.xLabel,
        labelFont: `11px ${colour("--font")}`,
        labelSize: 16,
        size: 28,
        values: (_u, ticks) =>
          ticks.map((tick) => (Number.isInteger(tick) || props.xLabel !== "step" ? `${tick}` : "")),
      },
      axis(show, 3, "y"),
      ...(lines.some((line) => line.axis) ? [axis(showRight, 1, "right")] : []),
    ],
    series: [
      { label: props.xLabel },
      ...lines.map((line) => ({
        label: line.label,
        scale: line.axis ?? "y",
        stroke: inkOf(line),
        width: line.area ? 0 : 1.5,
        points: { show: false },
        ...(line.dash ? { dash: [5, 4] } : {}),
        ...(line.area ? { fill: inkOf(line) } : {}),
        value: (_u: uPlot, _raw: number, at: number, index: number | null) =>
          index === null ? "" : (line.axis ? showRight : show)(latest.current.lines[at - 1]?.values[index] ?? null),
      })),
    ],
    bands: stack
      .slice(1)
      .map((at) => ({ series: [at, at - 1] as [number, number], fill: lines[at - 1]?.colour ?? "" })),
    hooks: { draw: [(u) => drawMarks(u, latest.current.marks ?? [], devicePixelRatio)] },
  };
}

function padded(low: number, high: number): [number, number] {
  // At least a tenth of the value: noise should not look like growth.
  const room = Math.max((high - low) * 0.15, 0.05 * high - (high - low) / 2) || 1;
  return [Math.max(0, low - room), high + room];
}

/** A chart that keeps its place: new numbers are drawn into it, and only new lines or colours build it again. */
export function Chart(props: ChartProps) {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const latest = useRef(props);
  latest.current = props;
  const [theme, wide, height] = [useTheme(), useWidth(place), props.height ?? HEIGHT];
  const shape = props.lines.map((line) => line.label + line.colour).join("|");
  const data = [props.x, ...stacked(props.lines)] as uPlot.AlignedData;

  useEffect(() => {
    if (!place.current) return;
    const made = new uPlot(options(latest, place.current.clientWidth || 600), data, place.current);
    plot.current = made;
    return () => made.destroy();
  }, [shape, theme]);
  useEffect(() => plot.current?.setData(data), [props.x, props.lines]);
  useEffect(() => void (wide && plot.current?.setSize({ width: wide, height })), [wide]);
  const style = { minHeight: `${height + 26}px` };
  return <div class="chart" ref={place} role="img" aria-label={props.alt} style={style} />;
}
