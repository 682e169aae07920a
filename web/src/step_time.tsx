// Step Time Analysis: where a step's time goes, on the median rank and on the worst one.
import { Breakdown, pivotOf, worstRank } from "./breakdown";
import { Chart, type Line, type Mark } from "./chart";
import * as fmt from "./fmt";
import { hasSteps, phaseLabel, phasesOf, shownPhases, type Phase } from "./phases";
import { Card, type Figure, Figures, Findings, Table } from "./parts";
import type { Event, Summary } from "./types";

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

function figures(summary: Summary, phases: Phase[]): Figure[] {
  const { metrics } = summary.step_time;
  const many = summary.run.world_size > 1;
  const pivot = pivotOf(summary);
  const dominant = [...phases].sort((a, b) => (metrics[b.key]?.share ?? 0) - (metrics[a.key]?.share ?? 0))[0];
  const rates = (["samples_per_s", "tokens_per_s"] as const)
    .filter((key) => metrics[key]?.average != null)
    .map((key): Figure => {
      const stat = metrics[key];
      const total = many && stat?.total != null ? `per rank, ${fmt.rate(stat.total)} in total` : "";
      return [key === "samples_per_s" ? "Samples/s" : "Tokens/s", fmt.rate(stat?.average), total];
    });
  return [
    ["Step Time", fmt.ms(metrics.step_ms?.median.value), many ? "median rank" : "mean"],
    ...(many
      ? ([
          [
            "Gap",
            fmt.skew(pivot.stat?.skew),
            `${pivot.label} ${fmt.ms(pivot.stat?.worst.value)} against ${fmt.ms(pivot.stat?.median.value)}`,
          ],
          ["Worst Rank", fmt.rank(worstRank(summary))],
        ] as Figure[])
      : ([["p5 to p95", `${fmt.ms(metrics.step_ms?.p5)} to ${fmt.ms(metrics.step_ms?.p95)}`]] as Figure[])),
    ["WAIT Share (%)", fmt.share(metrics.wait_ms?.share)],
    [
      "Dominant split",
      dominant ? dominant.label : fmt.MISSING,
      dominant ? fmt.share(metrics[dominant.key]?.share) : "",
    ],
    ...rates,
  ];
}

function PhaseTable({ summary, phases }: { summary: Summary; phases: Phase[] }) {
  const { metrics } = summary.step_time;
  const columns = [...phases.map((phase) => phase.key), "step_ms"];
  const each = (show: (key: string) => string): string[] => columns.map(show);
  const rows = [
    ["Median", ...each((key) => fmt.ms(metrics[key]?.median.value))],
    ["Worst", ...each((key) => fmt.ms(metrics[key]?.worst.value))],
    ["Worst Rank", ...each((key) => fmt.rank(metrics[key]?.worst.rank) || "–")],
    ["Skew (%)", ...each((key) => (metrics[key]?.skew == null ? "–" : fmt.skew(metrics[key]?.skew)))],
    ["Share (%)", ...each((key) => (metrics[key]?.share == null ? "–" : fmt.share(metrics[key]?.share)))],
    ["p5", ...each((key) => fmt.ms(metrics[key]?.p5))],
    ["p95", ...each((key) => fmt.ms(metrics[key]?.p95))],
    ["WAIT Share (%)", ...each((key) => (key === "wait_ms" ? fmt.share(metrics.wait_ms?.share) : ""))],
  ];
  const head = ["", ...phases.map((phase) => phase.label), "Step Time"];
  return <Table caption="Step time by phase: the typical rank and the worst one" head={head} rows={rows} hideCaption />;
}

function StepChart({ summary }: { summary: Summary }) {
  const series = summary.series.step_time;
  const steps = series.steps ?? [];
  if (steps.length < 2) return null;
  const phases = phasesOf(Object.keys(series), summary.catalog).filter((phase) =>
    series[phase.key]?.some((value) => value),
  );
  const lines: Line[] = phases.map((phase) => ({
    label: phase.label,
    values: series[phase.key] ?? [],
    colour: phase.colour,
    area: true,
  }));
  lines.push({ label: "Median", values: series.step_ms ?? [], colour: "--text" });
  const differs = series.step_ms_max?.some((value, at) => value !== series.step_ms?.[at]);
  if (differs) lines.push({ label: "Worst", values: series.step_ms_max ?? [], colour: "--worst", dash: true });
  const marks = marksOf(summary.events);
  const letters = [...new Set(marks.map((mark) => mark.letter))];
  const names = Object.values(LETTERS).filter(([letter]) => letters.includes(letter));
  return (
    <figure>
      <figcaption>
        Step time over steps: phases of the median rank, and the worst step
        {names.map(([letter, name]) => (
          <span class="letter" key={letter}>
            <b>{letter}</b> {name}
          </span>
        ))}
      </figcaption>
      <Chart x={steps} xLabel="step" lines={lines} show={fmt.ms} marks={marks} alt={describe(summary)} height={260} />
    </figure>
  );
}

function marksOf(events: Event[]): Mark[] {
  return events.flatMap((event) => {
    const letter = LETTERS[event.kind]?.[0];
    return letter && event.step != null ? [{ at: event.step, letter }] : [];
  });
}

function describe(summary: Summary): string {
  const step = summary.step_time.metrics.step_ms;
  const phase = phaseLabel(summary.primary_diagnosis.phase, summary.catalog);
  return (
    `Chart of step time: median ${fmt.ms(step?.median.value)}, p5 ${fmt.ms(step?.p5)}, p95 ${fmt.ms(step?.p95)}` +
    (phase ? `; the verdict is about ${phase}` : "")
  );
}
