// The types that the page works with. `schema.ts` is made from the dataclasses in Python: see `../schema_types.py`.
import type { Comparison, Live, MetricStat, Summary } from "./schema";

export type { Comparison, Event, Finding, Heatmap, Layer, Layers, ListedRun, Metric, Primary } from "./schema";
export type { Section, Side, Summary } from "./schema";

export type Num = number | null;

export type Stat = MetricStat;

export type Look = Omit<Live, "summary">;

export interface LiveRun { live: Look; summary: Summary }

export interface Compared { comparison: Comparison; shift: string; tables: [title: string, rows: string[][]][] }

export type Data =
  | { kind: "summary"; summary: Summary }
  | ({ kind: "comparison" } & Compared)
  | { kind: "live"; base: string };
