// Phases: their names in the reading guide, their order in a step, and one colour each in every picture.
import shared from "./shared.json";
import type { Metric, Num, Stat, Summary } from "./types";

export const COLOURS: Record<string, string> = shared.phases;

/** The names of the reading guide. All other phases keep the label of the catalogue. */
export const GUIDE: Record<string, string> = shared.labels;
const ORDER = ["input", "h2d", "forward", "no_grad", "backward", "sync", "optimizer", "validation", "checkpoint"];
const WORTH_SHOWING = 0.001;

export type Phase = { key: string; label: string; colour: string; ink: string };

/** Dark or white text, whichever has more contrast on this colour (relative luminance as in WCAG). */
export function ink(colour: string): string {
  const linear = (at: number): number => ((parseInt(colour.slice(at, at + 2), 16) / 255 + 0.055) / 1.055) ** 2.4;
  return 0.2126 * linear(1) + 0.7152 * linear(3) + 0.0722 * linear(5) > 0.179 ? "#14181f" : "#ffffff";
}

function phase(key: string, label: string, colour: string): Phase {
  return { key, label: GUIDE[key] ?? label, colour, ink: ink(colour) };
}

/** All phases that these metrics name, in the order of a step: known ones, the user's own, and the rest. */
export function phasesOf(keys: string[], catalog: Metric[]): Phase[] {
  const label = (key: string): string =>
    catalog.find((row) => row.key === key && row.section === "step_time")?.label ?? key.replace(/_ms$/, "");
  const known = [...ORDER.map((name) => `${name}_ms`)].filter((key) => keys.includes(key));
  const own = keys.filter((key) => key.startsWith("user."));
  return [
    ...known.map((key) => phase(key, label(key), COLOURS[key.replace(/_ms$/, "")] ?? "#999999")),
    ...own.map((key, at) =>
      phase(key, label(key).replace(/^user\./, ""), shared.user[at % shared.user.length] ?? "#999999"),
    ),
    ...(keys.includes("wait_ms") ? [phase("wait_ms", "Wait*", COLOURS.wait ?? "#999999")] : []),
  ];
}

const largest = (stat: Stat): number => Math.max(stat.median.value ?? 0, stat.worst.value ?? 0);

/** The phases worth a column: those of the guide, and others that take a notable part of a step. */
export function shownPhases(summary: Summary): Phase[] {
  const metrics = summary.step_time.metrics;
  const step = metrics.step_ms?.median.value ?? 0;
  return phasesOf(Object.keys(metrics), summary.catalog).filter((found) => {
    const stat = metrics[found.key];
    return found.key in GUIDE || (stat !== undefined && largest(stat) >= WORTH_SHOWING * step && largest(stat) > 0);
  });
}

export function phaseLabel(name: string | null, catalog: Metric[]): string {
  if (!name) return "";
  const key = `${name}_ms`;
  return GUIDE[key] ?? catalog.find((row) => row.key === key)?.label ?? name.replace(/^user\./, "");
}

export function unitOf(summary: Summary, section: string, key: string): Metric | undefined {
  return summary.catalog.find((row) => row.section === section && row.key === key);
}

export const known = (values: (Num | undefined)[] | undefined): boolean => !!values?.some((value) => value != null);

/** Whether there is anything to say about steps; old files do not always count them. */
export const hasSteps = ({ step_time: { window, metrics } }: Summary): boolean =>
  !!window.num_steps || metrics.step_ms?.median.value != null;
