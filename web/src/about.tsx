// The run as a whole: where its duration went, its trainings, events, notes, environment, and TraceML's own cost.
import * as fmt from "./fmt";
import { hasSteps, ink } from "./phases";
import { Badge, Bullets, Card, type Figure, Figures, Ribbon, Table, TableCard } from "./parts";
import type { Summary } from "./types";

const MOST_ROWS = 200;
/** Greys, so that no part is mistaken for a phase. */
const PARTS = ["#94a3b8", "#cbd5e1", "#64748b", "#aebbcc", "#7d8ca1"];

export function RunParts({ summary }: { summary: Summary }) {
  const { parts, totals, world_size } = summary.run;
  if (!parts.length) return null;
  const whose = totals.rank != null && world_size > 1 ? `of r${totals.rank}` : fmt.seconds(summary.run.duration_s);
  const named = parts.map((part, at) => ({ ...part, colour: PARTS[at % PARTS.length] ?? "#999999" }));
  const pieces = named.map(({ label, colour, share }) => ({
    phase: { key: label, label, colour, ink: ink(colour) },
    value: share,
  }));
  return (
    <Card id="run" title="The run's time" about={whose}>
      <Ribbon pieces={pieces} whole={1} label="The run" show={fmt.share} />
      <Table
        caption="Where the run's duration went"
        hideCaption
        head={["", "Time", "Share", ""]}
        words={[3]}
        rows={named.map((part) => [
          <>
            <span class="swatch" style={{ background: part.colour }} aria-hidden="true" /> {part.label}
          </>,
          fmt.seconds(part.seconds),
          fmt.share(part.share),
          part.about,
        ])}
      />
    </Card>
  );
}

export function Trainings({ summary }: { summary: Summary }) {
  const { trainings } = summary.run;
  const rows = trainings
    .slice(0, MOST_ROWS)
    .map((one) => [
      `${one.pid}${one.in_tables ? "*" : ""}`,
      fmt.count(one.steps),
      fmt.ms(one.step_ms),
      fmt.share(one.input_share),
      fmt.share(one.compute_share),
      <Badge finding={{ ...one, kind: "" }} />,
    ]);
  return (
    <TableCard
      id="trainings"
      title="Trainings"
      about={`${trainings.length} processes`}
      head={["Pid", "Steps", "Step Time", "Input", "Compute", "Diagnosis"]}
      words={[5]}
      rows={rows}
      foot="* the rest of the page is about this one"
    />
  );
}

export function Notes({ summary }: { summary: Summary }) {
  const { notes, ranks, world_size } = summary.run;
  const lost = ranks.lost.length && world_size > 1 ? [`Ranks without steps: ${fmt.ranks(ranks.lost)}`] : [];
  const attempts = ranks.earlier_attempts.map(
    (one, at) => `Earlier attempt ${at + 1}: ${fmt.count(one.steps)} steps; ${one.reason ?? "reason unknown"}`,
  );
  return <Bullets id="notes" title="Notes" lines={[...notes, ...lost, ...attempts]} />;
}

export function Environment({ summary }: { summary: Summary }) {
  const { environment: env, overhead: cost, run } = summary;
  const { warmup, first_step_ms } = run.steps;
  const facts: Figure[] = [
    ["Command", run.command.join(" ")],
    ["Started", fmt.moment(run.started_at)],
    ["Host", fmt.list(env.host)],
    ["System", fmt.list(env.os)],
    ["Cores", fmt.list(env.cpu_count)],
    ["Device", fmt.list(env.device_name ?? env.device, env.device_memory_bytes && fmt.size(env.device_memory_bytes))],
    ["Python", fmt.list(env.python)],
    ["torch", fmt.list(env.torch, env.torch_threads && `${env.torch_threads} threads`)],
    ["Packages", fmt.list(...Object.entries(env.packages).map((pair) => pair.join(" ")))],
    ["Batch", fmt.list(env.batch_size, (env.micro_batches ?? 1) > 1 && `${env.micro_batches} micro-batches`)],
    ["Parameters", env.model_parameters ? fmt.count(env.model_parameters) : ""],
    ["Git", fmt.list(env.git_commit?.slice(0, 10), env.git_dirty && "dirty")],
  ];
  if (warmup != null && hasSteps(summary))
    facts.push(["Warm-up", `${fmt.count(warmup)} steps left out; the first step took ${fmt.ms(first_step_ms)}`]);
  if (cost.us_per_step != null)
    facts.push([
      "TraceML's own cost",
      `${cost.us_per_step.toFixed(1)} µs per step (${fmt.share(cost.share)} of step time)`,
    ]);
  if (cost.monitor_cpu_s != null)
    facts.push(["Monitor", `${cost.monitor_cpu_s.toFixed(1)} s of CPU, ${fmt.size(cost.monitor_rss_bytes)}`]);
  const known = facts.filter(([, value]) => value);
  return known.length === 0 ? null : (
    <Card id="environment" title="Environment, warm-up and own overhead" class="environment">
      <Figures rows={known} />
    </Card>
  );
}
