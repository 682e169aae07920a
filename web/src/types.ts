// The JSON that Python writes: schema/summary.py, schema/comparison.py and schema/live.py, as far as the page shows it.

export type Num = number | null;
export type Columns = Record<string, Num[]>;

export interface Finding {
  kind: string; status: string; severity: string; summary: string; action: string; phase: string | null;
  ranks: number[]; evidence: Record<string, unknown>;
}

export interface Primary extends Finding {
  section: string; potential_speedup: Num; potential_how: string | null; potential_is_bound: boolean | null;
}

export interface RankValue { value: Num; rank: Num }

export interface Stat {
  average: Num; median: RankValue; worst: RankValue; p5: Num; p95: Num; skew: Num; share: Num; total: Num;
}

export interface Member {
  identity: { rank: Num; node_rank: Num; host: string | null; pid: Num };
  metrics: Record<string, Num>;
}

export interface Section {
  diagnosis: Finding; issues: Finding[];
  window: {
    start_step: Num; end_step: Num; num_steps: Num; clock: string | null; warmup_steps: Num; first_step_ms: Num;
    memory: string | null; capacity_bytes: Num; head_tail_delta_bytes: Num; samples: Num;
  };
  metrics: Record<string, Stat>; ranks: Record<string, Member>; nodes: Record<string, Member>;
}

export interface Metric { key: string; label: string; unit: string; section: string; help: string }

export interface Training {
  pid: number; steps: number; step_ms: Num; input_share: Num; compute_share: Num; status: string; severity: string;
  in_tables: boolean;
}

export interface Attempt { steps: number; reason: string | null }

export interface EndedFirst {
  rank: number; step: Num; phase: string | null; together: boolean; signal: string | null;
}

export interface Run {
  name: string; status: string; exit_code: Num; reason: string | null; started_at: string | null;
  ended_at: string | null; duration_s: Num; command: string[]; nodes: number; world_size: number;
  ranks: { seen: number[]; used: number[]; lost: number[]; ended_first: EndedFirst | null; earlier_attempts: Attempt[] };
  steps: { total: Num; analyzed: Num; warmup: Num; first_step_ms: Num };
  parts: { label: string; seconds: number; share: number; about: string }[];
  trainings: Training[]; totals: Record<string, Num>; notes: string[];
}

export interface Heatmap { first_ranks: number[]; worst_ranks: number[]; steps: number[]; own_ms: Num[][] }

export interface Event {
  kind: string; rank: Num; step: Num; time_s: Num; duration_ms: number; message: string | null;
  during: string | null; phase: string | null;
}

export interface Environment {
  host: string | null; os: string | null; cpu_count: Num; git_commit: string | null; git_dirty: boolean | null;
  python: string | null; torch: string | null; torch_threads: Num; packages: Record<string, string>;
  device: string | null; device_name: string | null; device_memory_bytes: Num; batch_size: Num; micro_batches: Num;
  model_parameters: Num;
}

export interface Layer {
  path: string; type: string; calls: number; forward_ms: number; forward_total_ms: number; forward_share: Num;
  backward_ms: number; backward_total_ms: number; backward_share: Num; recompute_ms: number; parameter_bytes: Num;
  gradient_bytes: Num; activation_bytes: Num; worst: RankValue;
}

export interface Layers {
  samples: number; start_step: Num; end_step: Num; clock: string | null; ranks: number[]; forward_ms: Num;
  backward_ms: Num; recompute_ms: Num; outside_share: Num; parameter_bytes: Num; gradient_bytes: Num;
  activation_bytes: Num; outside_bytes: Num; count: number; notes: string[]; layers: Layer[];
}

export interface Summary {
  layers?: Layers | null;
  run: Run; primary_diagnosis: Primary; step_time: Section; step_memory: Section; system: Section; process: Section;
  schema: string; final: boolean;
  series: { step_time: Columns; step_memory: Columns; system: Columns; process: Columns; heatmap: Heatmap };
  events: Event[];
  environment: Environment;
  overhead: { us_per_step: Num; share: Num; how: string | null; monitor_cpu_s: Num; monitor_rss_bytes: Num };
  catalog: Metric[];
}

export interface Look { state: string; quiet_s: number; since_step: Num; since_start: boolean; steps_per_s: Num }

export interface LiveRun { live: Look; summary: Summary }

export interface ListedRun {
  name: string; started_at: string | null; status: string | null; exit_code: Num; verdict: string | null;
  severity: string | null; step_ms: Num; steps: Num; world_size: Num; duration_s: Num; problem: string | null;
}

export interface Change {
  label: string; section: string; unit: string; a: Num; b: Num; delta: Num; delta_share: Num; notable: boolean;
}

export interface Side {
  name: string;
  runs: { name: string; path: string; status: string; steps: Num; started_at: string | null }[];
}

export interface Comparison {
  a: Side; b: Side; verdict: string; why: string; next: string;
  interval: {
    basis: string; a_ms: Num; b_ms: Num; delta_share: Num; low_share: Num; high_share: Num; confidence: Num;
    change: string;
  };
  metrics: Record<string, Change>;
  explained_by: { phase: string; label: string; delta_ms: number; share: number; rank: Num }[];
  moved: {
    ranks: number[]; node: Num; label: string; a_ms: number; b_ms: number; delta_ms: number; others_delta_ms: number;
  }[];
  differences: { what: string; a: string; b: string; matters: boolean }[];
  warnings: string[];
}

export interface Compared {
  comparison: Comparison; shift: string; tables: [title: string, rows: string[][]][]; a: Summary | null;
  b: Summary | null;
}

export type Data =
  | { kind: "summary"; summary: Summary }
  | ({ kind: "comparison" } & Compared)
  | { kind: "live"; base: string };
