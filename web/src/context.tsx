// Step Memory Analysis, and the System and Process cards.
import { Chart, type Line } from "./chart";
import { metricOf, type Num, type Summary } from "./data";
import * as fmt from "./fmt";
import { Card, type Figure, Figures, Findings, Table } from "./parts";

const MEMORY: Record<string, string> = { device: "device memory", rss: "resident memory (no accelerator)" };

export function StepMemory({ summary }: { summary: Summary }) {
  const { step_memory: section } = summary;
  const judged = section.metrics[section.window.memory === "device" ? "peak_allocated_bytes" : "rss_bytes"];
  const rows: Figure[] = [
    ["Median Peak (max/K)", fmt.size(judged?.median.value)],
    ["Worst Peak (max/K)", fmt.size(judged?.worst.value)],
    ["Worst Rank", fmt.rank(judged?.worst.rank)],
    ["Skew (%)", fmt.skew(judged?.skew)],
    ["Head/Tail Delta (worst)", fmt.size(section.window.head_tail_delta_bytes)],
  ];
  if (section.window.capacity_bytes != null) rows.push(["Capacity", fmt.size(section.window.capacity_bytes)]);
  const series = summary.series.step_memory;
  const lines: Line[] = [{ label: "Median", values: series.median_bytes ?? [], colour: "--text" }];
  if (summary.run.world_size > 1)
    lines.unshift({ label: "Worst", values: series.worst_bytes ?? [], colour: "--worst", dash: true });
  const alt =
    `Chart of peak memory: worst ${fmt.size(judged?.worst.value)}, ` +
    `change from head to tail ${fmt.size(section.window.head_tail_delta_bytes)}`;
  const isKnown = judged?.worst.value != null;
  return (
    <Card id="step-memory" title="Step Memory Analysis" about={MEMORY[section.window.memory ?? ""] ?? ""}>
      <Findings name="step_memory" issues={section.issues} first={summary.primary_diagnosis} />
      {isKnown && <Figures rows={rows} />}
      {isKnown && (series.steps?.length ?? 0) > 1 && (
        <figure>
          <figcaption>Peak memory over steps{lines.length > 1 ? ": worst rank and median rank" : ""}</figcaption>
          <Chart x={series.steps ?? []} xLabel="step" lines={lines} show={fmt.size} min={0} alt={alt} />
        </figure>
      )}
    </Card>
  );
}

/** What the charts show, if it was measured: percentages on the left, memory on the right. */
const GAUGES: Record<string, Record<string, string>> = {
  system: {
    cpu_percent: "--blue",
    gpu_util_percent: "--green",
    gpu_mem_percent: "--purple",
    ram_bytes: "--worst",
  },
  process: { cpu_percent: "--blue", cpu_delay_percent: "--purple", rss_bytes: "--worst" },
};

type Gauged = { summary: Summary; name: "system" | "process"; title: string };

export function Gauges({ summary, name, title }: Gauged) {
  const section = summary[name];
  const several = Object.keys(section.nodes).length + Object.keys(section.ranks).length > 1;
  const isNodes = Object.keys(section.nodes).length > 0;
  const rows = Object.entries(section.metrics).flatMap(([key, stat]) => {
    const row = metricOf(summary, name, key);
    if (!row || stat.average == null) return [];
    const show = (value: Num): string => fmt.inUnit(row.unit, value);
    const worst = several ? [show(stat.worst.value), `${isNodes ? "node " : "r"}${stat.worst.rank ?? ""}`] : [];
    return [[<span title={row.help}>{row.label}</span>, show(stat.average), show(stat.p95), ...worst]];
  });
  const head = ["", "Mean", "p95", ...(several ? ["Worst", isNodes ? "Worst node" : "Worst Rank"] : [])];
  const samples = section.window.samples;
  return (
    <Card id={name} title={title} about={samples ? `${fmt.count(samples)} samples` : ""}>
      <Findings name={name} issues={section.issues} first={summary.primary_diagnosis} />
      {rows.length > 0 && <Table caption={`${title}: means over the training`} head={head} rows={rows} hideCaption />}
      <GaugeChart summary={summary} name={name} title={title} />
    </Card>
  );
}

function GaugeChart({ summary, name, title }: Gauged) {
  const series = summary.series[name] ?? {};
  const seconds = series.seconds ?? [];
  const lines = Object.entries(GAUGES[name] ?? {}).flatMap(([key, colour]): Line[] => {
    const row = metricOf(summary, name, key);
    const values = series[key] ?? [];
    if (!row || values.every((value) => value == null)) return [];
    const right = row.unit === "bytes" ? { axis: "right" as const, dash: true } : {};
    return [{ label: row.label, values, colour, ...right }];
  });
  if (seconds.length < 2 || !lines.length) return null;
  const whose = name === "process" ? "the highest of the ranks" : "this machine";
  const where = summary.run.nodes > 1 ? `${whose}, on the first node` : whose;
  const alt = `Chart over time of ${lines.map((line) => line.label).join(", ")}; the table above has the means`;
  const shown = { lines, show: fmt.percent, showRight: fmt.size, height: 170, alt };
  return (
    <figure>
      <figcaption>
        {title} over the run ({where})
      </figcaption>
      <Chart x={seconds} xLabel="seconds since the start" {...shown} />
    </figure>
  );
}
