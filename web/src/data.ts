// What the page works with. `schema.ts` is made from the dataclasses in Python: see `../schema_types.py`. And phases:
// their names in the reading guide, their order in a step, and one colour each in every picture.
import type { Comparison, Live, Metric, MetricStat, Summary } from "./schema";
import shared from "./shared.json";

export type * from "./schema";
export type Num = number | null;
export type Look = Omit<Live, "summary">;
export type LiveRun = { live: Look; summary: Summary };
export type Compared = { comparison: Comparison; shift: string; tables: [title: string, rows: string[][]][] };
export type Data =
  | { kind: "summary"; summary: Summary }
  | ({ kind: "comparison" } & Compared)
  | { kind: "live"; base: string };
export type Phase = { key: string; label: string; colour: string; ink: string };

export const COLOURS: Record<string, string> = shared.phases;
/** How each state of a run is called. */
export const STATES: Record<string, string> = shared.states;
/** The names of the reading guide. All other phases keep the label of the catalogue. */
const GUIDE: Record<string, string> = shared.labels;
const ORDER = ["input", "h2d", "forward", "no_grad", "backward", "sync", "optimizer", "validation", "checkpoint"];
const WORTH_SHOWING = 0.001;

/** Dark or white text, whichever has more contrast on this colour (relative luminance as in WCAG). */
export function ink(colour: string): string {
  const linear = (at: number): number => ((parseInt(colour.slice(at, at + 2), 16) / 255 + 0.055) / 1.055) ** 2.4;
  return 0.2126 * linear(1) + 0.7152 * linear(3) + 0.0722 * linear(5) > 0.179 ? "#14181f" : "#ffffff";
}

/** The name of a phase, by the key of its metric. */
export function labelOf(key: string, catalog: Pick<Metric, "key" | "label">[]): string {
  const known = GUIDE[key] ?? catalog.find((row) => row.key === key)?.label ?? key.replace(/_ms$/, "");
  return known.replace(/^user\./, "");
}

/** All phases that these metrics name, in the order of a step: known ones, the user's own, and the rest. */
export function phasesOf(keys: string[], catalog: Pick<Metric, "key" | "label">[]): Phase[] {
  const own = keys.filter((key) => key.startsWith("user."));
  const known = ORDER.map((name) => `${name}_ms`).filter((key) => keys.includes(key));
  return [...known, ...own, ...keys.filter((key) => key === "wait_ms")].map((key) => {
    const users = shared.user[own.indexOf(key) % shared.user.length];
    const colour = COLOURS[key.replace(/_ms$/, "")] ?? users ?? "#999999";
    return { key, label: labelOf(key, catalog), colour, ink: ink(colour) };
  });
}

/** The phases worth a column: those of the guide, and others that take a notable part of a step. */
export function shownPhases({ step_time: { metrics }, catalog }: Summary): Phase[] {
  const largest = (stat?: MetricStat): number => Math.max(stat?.median.value ?? 0, stat?.worst.value ?? 0);
  const least = WORTH_SHOWING * (metrics.step_ms?.median.value ?? 0);
  return phasesOf(Object.keys(metrics), catalog).filter(({ key }) => {
    const time = largest(metrics[key]);
    return key in GUIDE || (time > 0 && time >= least);
  });
}

export const metricOf = (summary: Summary, section: string, key: string): Metric | undefined =>
  summary.catalog.find((row) => row.section === section && row.key === key);

/** Whether there is anything to say about steps; old files do not always count them. */
export const hasSteps = ({ step_time: { window, metrics } }: Summary): boolean =>
  !!window.num_steps || metrics.step_ms?.median.value != null;
