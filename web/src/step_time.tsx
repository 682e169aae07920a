// Step Time Analysis: where a step's time goes, on the median rank and on the worst one.
import { Chart, type Line as ChartLine } from "./chart";
import { hasSteps, labelOf, type MetricStat, type Num, type Phase, phasesOf, shownPhases, type Summary } from "./data";
import * as fmt from "./fmt";
import { Card, type Figure, Figures, Findings, Legend, Line, Ribbon, Table } from "./parts";

/** Events that a chart marks, and their letters. */
const LETTERS: Record<string, [string, string]> = {
  checkpoint: ["C", "checkpoint"],
  validation: ["V", "validation"],
  epoch_start: ["E", "epoch begins"],
  gc: ["G", "garbage collection"],
  stall: ["S", "stall"],
  error: ["!", "error"],
  rank_ended: ["✕", "rank ended"],
};

export function StepTime({ summary }: { summary: Summary }) {
  const { step_time: section, run } = summary;
  const { window } = section;
  const phases = shownPhases(summary);
  const span = window.num_steps
    ? `steps ${fmt.plain(window.start_step)} to ${fmt.plain(window.end_step)}, ${window.clock ?? "unknown"} clock`
    : "";
  return (
    <Card id="step-time" title="Step Time Analysis" about={span}>
      <Findings name="step_time" issues={section.issues} first={summary.primary_diagnosis} />
      {hasSteps(summary) && (
        <>
          <Breakdown summary={summary} phases={phases} legend />
          <Figures rows={figures(summary, phases)} />
          <PhaseTable summary={summary} phases={phases} />
          <p class="foot">* time in the step that no phase claims{run.world_size > 1 ? "; r3 is rank 3" : ""}</p>
          <StepChart summary={summary} />
        </>
      )}
    </Card>
  );
}

/** The metric by which ranks are told apart, the verdict's phase or the step, and the worst rank. */
function pivotOf({ primary_diagnosis: first, step_time, catalog }: Summary): [string, MetricStat | undefined, Num] {
  const isAbout = first.section === "step_time";
  const key = isAbout && step_time.metrics[`${first.phase}_ms`]?.worst.rank != null ? `${first.phase}_ms` : "step_ms";
  const stat = step_time.metrics[key];
  return [labelOf(key, catalog), stat, (isAbout ? first.ranks[0] : null) ?? stat?.worst.rank ?? null];
}

/** A step as a bar of its phases: of the median rank and of the worst one. Both are real ranks, so the parts of a bar
 * add up to its step. */
export function Breakdown({ summary, phases, legend }: { summary: Summary; phases: Phase[]; legend?: boolean }) {
  const { metrics, ranks } = summary.step_time;
  const several = summary.run.world_size > 1;
  const [, pivot, worst] = pivotOf(summary);
  const barOf = (name: string, side: "median" | "worst", rank: Num) => {
    const member = ranks[String(rank)]?.metrics;
    const value = (key: string): Num => (member ? member[key] : metrics[key]?.[side].value) ?? null;
    const share = (key: string): Num => (several ? null : (metrics[key]?.share ?? null)); // shares are no rank's own
    const pieces = phases.map((phase) => ({ phase, value: value(phase.key), share: share(phase.key) }));
    return { name: several ? `${name} ${fmt.rank(rank)}` : name, step: value("step_ms"), pieces };
  };
  const bars = [barOf("Median", "median", pivot?.median.rank ?? null)];
  if (several) bars.push(barOf("Worst", "worst", worst));
  const whole = Math.max(...bars.map((bar) => bar.step ?? 0)) || 1;
  return (
    <div class="breakdown">
      {bars.map((bar) => (
        <Line key={bar.name} name={bar.name} sum={fmt.ms(bar.step)}>
          <Ribbon pieces={bar.pieces} whole={whole} label={`${bar.name} step`} />
        </Line>
      ))}
      {legend && <Legend pieces={bars[0]?.pieces ?? []} />}
    </div>
  );
}

function figures(summary: Summary, phases: Phase[]): Figure[] {
  const { metrics } = summary.step_time;
  const many = summary.run.world_size > 1;
  const [label, pivot, worst] = pivotOf(summary);
  const dominant = [...phases].sort((a, b) => (metrics[b.key]?.share ?? 0) - (metrics[a.key]?.share ?? 0))[0];
  const rate = (key: string, name: string): Figure[] => {
    const stat = metrics[key];
    if (stat?.average == null) return [];
    const total = many && stat.total != null ? `per rank, ${fmt.rate(stat.total)} in total` : "";
    return [[name, fmt.rate(stat.average), total]];
  };
  const spread: Figure[] = many
    ? [
        ["Gap", fmt.skew(pivot?.skew), `${label} ${fmt.ms(pivot?.worst.value)} against ${fmt.ms(pivot?.median.value)}`],
        ["Worst Rank", fmt.rank(worst)],
      ]
    : [["p5 to p95", `${fmt.ms(metrics.step_ms?.p5)} to ${fmt.ms(metrics.step_ms?.p95)}`]];
  return [
    ["Step Time", fmt.ms(metrics.step_ms?.median.value), many ? "median rank" : "mean"],
    ...spread,
    ["WAIT Share (%)", fmt.share(metrics.wait_ms?.share)],
    ["Dominant split", dominant?.label ?? fmt.MISSING, dominant ? fmt.share(metrics[dominant.key]?.share) : ""],
    ...rate("samples_per_s", "Samples/s"),
    ...rate("tokens_per_s", "Tokens/s"),
  ];
}

function PhaseTable({ summary, phases }: { summary: Summary; phases: Phase[] }) {
  const keys = [...phases.map((phase) => phase.key), "step_ms"];
  const row = (name: string, show: (stat: MetricStat | undefined, key: string) => string): string[] => [
    name,
    ...keys.map((key) => show(summary.step_time.metrics[key], key)),
  ];
  const rows = [
    row("Median", (stat) => fmt.ms(stat?.median.value)),
    row("Worst", (stat) => fmt.ms(stat?.worst.value)),
    row("Worst Rank", (stat) => fmt.rank(stat?.worst.rank) || "–"),
    row("Skew (%)", (stat) => (stat?.skew == null ? "–" : fmt.skew(stat.skew))),
    row("Share (%)", (stat) => (stat?.share == null ? "–" : fmt.share(stat.share))),
    row("p5", (stat) => fmt.ms(stat?.p5)),
    row("p95", (stat) => fmt.ms(stat?.p95)),
    row("WAIT Share (%)", (stat, key) => (key === "wait_ms" ? fmt.share(stat?.share) : "")),
  ];
  const head = ["", ...phases.map((phase) => phase.label), "Step Time"];
  return <Table caption="Step time by phase: the typical rank and the worst one" head={head} rows={rows} hideCaption />;
}

function StepChart({ summary }: { summary: Summary }) {
  const { step_time: series } = summary.series;
  const { steps = [], step_ms: typical = [], step_ms_max: worst = [] } = series;
  if (steps.length < 2) return null;
  const lines: ChartLine[] = phasesOf(Object.keys(series), summary.catalog)
    .filter(({ key }) => series[key]?.some((value) => value))
    .map(({ key, label, colour }) => ({ label, values: series[key] ?? [], colour, area: true }));
  lines.push({ label: "Median", values: typical, colour: "--text" });
  if (worst.some((value, at) => value !== typical[at]))
    lines.push({ label: "Worst", values: worst, colour: "--worst", dash: true });
  const marks = summary.events.flatMap(({ kind, step }) => {
    const letter = LETTERS[kind]?.[0];
    return letter && step != null ? [{ at: step, letter }] : [];
  });
  const letters = Object.values(LETTERS).filter(([letter]) => marks.some((mark) => mark.letter === letter));
  const { phase } = summary.primary_diagnosis;
  const step = summary.step_time.metrics.step_ms;
  const alt =
    `Chart of step time: median ${fmt.ms(step?.median.value)}, p5 ${fmt.ms(step?.p5)}, p95 ${fmt.ms(step?.p95)}` +
    (phase ? `; the verdict is about ${labelOf(`${phase}_ms`, summary.catalog)}` : "");
  return (
    <figure>
      <figcaption>
        Step time over steps: phases of the median rank, and the worst step
        {letters.map(([letter, name]) => (
          <span class="letter" key={letter}>
            <b>{letter}</b> {name}
          </span>
        ))}
      </figcaption>
      <Chart x={steps} xLabel="step" lines={lines} show={fmt.ms} marks={marks} alt={alt} height={260} />
    </figure>
  );
}
