// A step as a bar of its phases: of the median rank and of the worst one. Both are real ranks, so the parts of a bar
// add up to its step.
import * as fmt from "./fmt";
import { phaseLabel, type Phase } from "./phases";
import { Legend, Line, type Piece, Ribbon } from "./parts";
import type { Num, Stat, Summary } from "./types";

/** The metric by which ranks are told apart: the verdict's phase, or the step. */
export function pivotOf(summary: Summary): { key: string; label: string; stat: Stat | undefined } {
  const { primary_diagnosis: first, step_time: section, catalog } = summary;
  const key = `${first.phase}_ms`;
  const fits = first.section === "step_time" && section.metrics[key]?.worst.rank != null;
  return fits
    ? { key, label: phaseLabel(first.phase, catalog), stat: section.metrics[key] }
    : { key: "step_ms", label: "Step Time", stat: section.metrics.step_ms };
}

export function worstRank(summary: Summary): Num {
  const named = summary.primary_diagnosis.section === "step_time" ? summary.primary_diagnosis.ranks[0] : undefined;
  return named ?? pivotOf(summary).stat?.worst.rank ?? null;
}

type Bar = { name: string; step: Num; pieces: Piece[] };

function barOf(summary: Summary, phases: Phase[], name: string, side: "median" | "worst", rank: Num): Bar {
  const { metrics, ranks } = summary.step_time;
  const member = ranks[String(rank)]?.metrics;
  const value = (key: string): Num => (member ? member[key] : metrics[key]?.[side].value) ?? null;
  return {
    name: summary.run.world_size > 1 ? `${name} ${fmt.rank(rank)}` : name,
    step: value("step_ms"),
    pieces: phases.map((phase) => ({ phase, value: value(phase.key), share: metrics[phase.key]?.share ?? null })),
  };
}

export function Breakdown({ summary, phases, legend }: { summary: Summary; phases: Phase[]; legend?: boolean }) {
  const bars = [barOf(summary, phases, "Median", "median", pivotOf(summary).stat?.median.rank ?? null)];
  if (summary.run.world_size > 1) bars.push(barOf(summary, phases, "Worst", "worst", worstRank(summary)));
  const whole = Math.max(...bars.map((bar) => bar.step ?? 0)) || 1;
  return (
    <div class="breakdown">
      {bars.map((bar) => (
        <Line key={bar.name} name={bar.name} sum={fmt.ms(bar.step)}>
          <Ribbon pieces={bar.pieces} whole={whole} label={`${bar.name} step`} />
        </Line>
      ))}
      {legend && <Legend pieces={(bars[0]?.pieces ?? []).filter((piece) => (piece.value ?? 0) > 0)} />}
    </div>
  );
}
