// The page of one run, finished or live: a pure function of its Summary. First what is wrong, where, how much it costs
// and what to do; at the end the run as a whole: where its duration went, notes, environment, TraceML's own cost.
import { Gauges, StepMemory } from "./context";
import { type Finding, hasSteps, ink, labelOf, type Look, shownPhases, STATES, type Summary } from "./data";
import * as fmt from "./fmt";
import { Layers } from "./layers";
import { Badge, Bullets, Card, type Figure, Figures, Head, Ribbon, severityOf, Table, TableCard } from "./parts";
import { RankHeatmap, RankTable } from "./ranks";
import { Breakdown, StepTime } from "./step_time";

const SECTIONS = [
  ["step_time", "Step time"],
  ["step_memory", "Step memory"],
  ["system", "System"],
  ["process", "Process"],
] as const;
const MOST_ROWS = 200;
/** Greys, so that no part is mistaken for a phase. */
const PARTS = ["#94a3b8", "#cbd5e1", "#64748b", "#aebbcc", "#7d8ca1"];

type Shown = { summary: Summary; look?: Look | null; isLost?: boolean };

export function RunView({ summary, look = null, isLost = false }: Shown) {
  const isOver = summary.final || look?.state === "crashed";
  const isKnown = hasSteps(summary);
  const hasNews = isKnown || (!isOver && summary.step_time.diagnosis.kind !== "NO_DATA");
  return (
    <article class={isLost ? "lost" : ""}>
      <Header summary={summary} look={look} isLost={isLost} />
      <ModelDiagnostics summary={summary} look={look} />
      {hasNews && <StepTime summary={summary} />}
      {summary.run.world_size > 1 && summary.series.heatmap?.own_ms.length > 1 && <RankHeatmap summary={summary} />}
      {isKnown && <Layers summary={summary} />}
      {isKnown && <RankTable summary={summary} />}
      <div class="columns">
        {isKnown && <StepMemory summary={summary} />}
        {(isKnown || !!summary.system.window.samples) && <Gauges summary={summary} name="system" title="System" />}
        {(isKnown || !!summary.process.window.samples) && <Gauges summary={summary} name="process" title="Process" />}
        <Trainings summary={summary} />
        <RunParts summary={summary} />
      </div>
      <Notes summary={summary} />
      <Environment summary={summary} />
    </article>
  );
}

function stateOf({ run }: Summary, look: Look | null, isLost: boolean): [state: string, words: string] {
  if (!look) {
    // A report on disk: what is written there is all there is, so nothing in it can be live.
    if (run.status === "running") return ["stale", "was running when this was written"];
    return [run.status === "completed" ? "finished" : run.status === "unknown" ? "waiting" : "crashed", run.status];
  }
  const over = look.state === "finished" || look.state === "crashed";
  if (isLost) return ["lost", "no connection"];
  if (look.state === "stale") return ["stale", `no news for ${fmt.seconds(look.quiet_s)}`];
  return [look.state, over ? `${STATES[look.state]}: ${run.status}` : (STATES[look.state] ?? look.state)];
}

function Header({ summary, look = null, isLost = false }: Shown) {
  const { run } = summary;
  const [state, words] = stateOf(summary, look, isLost);
  const facts = [
    run.steps.total == null ? "" : `${fmt.count(run.steps.total)} steps`,
    run.duration_s == null ? "" : fmt.seconds(run.duration_s),
    run.world_size > 1 ? `${fmt.count(run.world_size)} ranks` : "",
    run.nodes > 1 ? `${fmt.count(run.nodes)} nodes` : "",
    state === "live" && look?.steps_per_s != null ? `${look.steps_per_s.toFixed(1)} steps/s` : "",
  ];
  return (
    <div class="run">
      <h1>{run.name || "Run"}</h1>
      <span class={`state ${state}`} role="status">
        {words}
      </span>
      <span class="facts">{facts.filter(Boolean).join(" · ")}</span>
    </div>
  );
}

function ModelDiagnostics({ summary, look }: { summary: Summary; look: Look | null }) {
  const first = summary.primary_diagnosis;
  const since = look?.since_step == null ? "" : ` since step ${look.since_step}${look.since_start ? " or earlier" : ""}`;
  const rail = SECTIONS.map(([name, title]) => (
    <Entry key={name} finding={summary[name].diagnosis} name={name} title={title} isFirst={first.section === name} />
  ));
  return (
    <Head
      title="Model Diagnostics"
      tone={severityOf(first)}
      label={[<Badge finding={first} big />, since]}
      why={first.summary}
      next={first.action}
      first={<Ended summary={summary} />}
      rail={rail}
    >
      <Figures rows={figures(summary)} />
      {hasSteps(summary) && <Breakdown summary={summary} phases={shownPhases(summary)} />}
    </Head>
  );
}

function Entry(props: { finding: Finding; name: string; title: string; isFirst: boolean }) {
  const { finding, title } = props;
  const target = `#${props.name.replace("_", "-")}`;
  const go = (event: MouseEvent): void => {
    event.preventDefault(); // the hash of the address is the route of the page
    const behavior = matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth";
    document.querySelector(target)?.scrollIntoView({ behavior });
  };
  return (
    <a class="entry" href={target} onClick={go}>
      <span class="title">{title}</span>
      <Badge finding={finding} />
      <span class="evidence">{props.isFirst && finding.severity !== "info" ? "The verdict." : finding.summary}</span>
    </a>
  );
}

function figures({ primary_diagnosis: first, catalog, run, step_time }: Summary): Figure[] {
  const host = step_time.ranks[String(first.ranks[0])]?.identity.host;
  const where = fmt.list(first.phase && labelOf(`${first.phase}_ms`, catalog), fmt.ranks(first.ranks));
  const cost = first.evidence.cost_ms;
  const much = first.potential_is_bound === false ? "about" : "at most";
  const gain = first.potential_speedup == null ? "" : `${much} ${fmt.factor(first.potential_speedup)} as fast`;
  const rows: Figure[] = [
    ["Where", where, host && run.nodes > 1 && first.ranks.length === 1 ? `on ${host}` : ""],
    ["Cost", typeof cost === "number" && cost > 0 ? fmt.ms(cost) : "", "per step"],
    ["Gain", gain, first.potential_how ? `(${first.potential_how})` : ""],
  ];
  return rows.filter(([, value]) => value);
}

/** How a run ended that did not complete; the first rank that ended, unless the reason names it. */
function Ended({ summary: { run } }: { summary: Summary }) {
  if (["completed", "running", "unknown"].includes(run.status)) return null;
  const reason = run.reason ?? "no Python exception was seen";
  const first = reason.includes("ended first") ? null : run.ranks.ended_first;
  const how =
    first &&
    fmt.list(
      fmt.rank(first.rank),
      first.signal && `killed by ${first.signal}`,
      first.step != null && `after step ${first.step}`,
      first.phase && `in ${first.phase}`,
    );
  return (
    <div class="ended">
      {first && (
        <p>
          <b>{first.together ? "Ended together, among others" : "Ended first"}</b> {how}
        </p>
      )}
      <p>
        <b>Ended</b> {run.status}: {reason}
        {run.exit_code == null ? "" : ` (exit code ${run.exit_code})`}
      </p>
    </div>
  );
}

function RunParts({ summary: { run } }: { summary: Summary }) {
  if (!run.parts.length) return null;
  const whose = run.totals.rank != null && run.world_size > 1 ? `of r${run.totals.rank}` : fmt.seconds(run.duration_s);
  const named = run.parts.map((part, at) => ({ ...part, colour: PARTS[at % PARTS.length] ?? "#999999" }));
  const pieces = named.map(({ label, colour, share }) => ({
    phase: { key: label, label, colour, ink: ink(colour) },
    value: share,
  }));
  const rows = named.map((part) => [
    [<span class="swatch" style={{ background: part.colour }} aria-hidden="true" />, " ", part.label],
    fmt.seconds(part.seconds),
    fmt.share(part.share),
    part.about,
  ]);
  return (
    <Card id="run" title="The run's time" about={whose}>
      <Ribbon pieces={pieces} whole={1} label="The run" show={fmt.share} />
      <Table caption="Where the run's duration went" hideCaption head={["", "Time", "Share", ""]} words={[3]} rows={rows} />
    </Card>
  );
}

function Trainings({ summary: { run } }: { summary: Summary }) {
  const rows = run.trainings.slice(0, MOST_ROWS).map((one) => [
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
      about={`${run.trainings.length} processes`}
      head={["Pid", "Steps", "Step Time", "Input", "Compute", "Diagnosis"]}
      words={[5]}
      rows={rows}
      foot="* the rest of the page is about this one"
    />
  );
}

function Notes({ summary: { run } }: { summary: Summary }) {
  const { notes, ranks, world_size } = run;
  const lost = ranks.lost.length && world_size > 1 ? [`Ranks without steps: ${fmt.ranks(ranks.lost)}`] : [];
  const attempts = ranks.earlier_attempts.map(
    (one, at) => `Earlier attempt ${at + 1}: ${fmt.count(one.steps)} steps; ${one.reason ?? "reason unknown"}`,
  );
  return <Bullets id="notes" title="Notes" lines={[...notes, ...lost, ...attempts]} />;
}

function Environment({ summary }: { summary: Summary }) {
  const { environment: env, overhead: cost, run } = summary;
  const { warmup, first_step_ms } = run.steps;
  const facts: [string, string | false | null | undefined][] = [
    ["Command", run.command.join(" ")],
    ["Started", fmt.moment(run.started_at)],
    ["Host", env.host],
    ["System", env.os],
    ["Cores", fmt.list(env.cpu_count)],
    ["Device", fmt.list(env.device_name ?? env.device, env.device_memory_bytes && fmt.size(env.device_memory_bytes))],
    ["Python", env.python],
    ["torch", fmt.list(env.torch, env.torch_threads && `${env.torch_threads} threads`)],
    ["Packages", fmt.list(...Object.entries(env.packages).map((pair) => pair.join(" ")))],
    ["Batch", fmt.list(env.batch_size, (env.micro_batches ?? 1) > 1 && `${env.micro_batches} micro-batches`)],
    ["Parameters", env.model_parameters ? fmt.count(env.model_parameters) : ""],
    ["Git", fmt.list(env.git_commit?.slice(0, 10), env.git_dirty && "dirty")],
    [
      "Warm-up",
      warmup != null &&
        hasSteps(summary) &&
        `${fmt.count(warmup)} steps left out; the first step took ${fmt.ms(first_step_ms)}`,
    ],
    [
      "TraceML's own cost",
      cost.us_per_step != null && `${cost.us_per_step.toFixed(1)} µs per step (${fmt.share(cost.share)} of step time)`,
    ],
    [
      "Monitor",
      cost.monitor_cpu_s != null && `${cost.monitor_cpu_s.toFixed(1)} s of CPU, ${fmt.size(cost.monitor_rss_bytes)}`,
    ],
  ];
  const known = facts.flatMap(([label, value]): Figure[] => (value ? [[label, value]] : []));
  return known.length === 0 ? null : (
    <Card id="environment" title="Environment, warm-up and own overhead">
      <Figures rows={known} />
    </Card>
  );
}
