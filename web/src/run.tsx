// The page of one run, finished or live: a pure function of its Summary.
import { Environment, Notes, RunParts, Trainings } from "./about";
import { Gauges, StepMemory } from "./context";
import * as fmt from "./fmt";
import { RankHeatmap } from "./heatmap";
import { hasSteps } from "./phases";
import { Layers } from "./layers";
import { RankTable } from "./ranks";
import shared from "./shared.json";
import { StepTime } from "./step_time";
import type { Look, Summary } from "./types";
import { ModelDiagnostics } from "./verdict";

/** How each state is called. */
const STATES: Record<string, string> = shared.states;

function stateOf(summary: Summary, look: Look | null, isLost: boolean): [state: string, words: string] {
  if (!look) {
    // A report on disk: what is written there is all there is, so nothing in it can be live.
    const { status } = summary.run;
    if (status === "running") return ["stale", "was running when this was written"];
    return [status === "completed" ? "finished" : status === "unknown" ? "waiting" : "crashed", status];
  }
  const over = look.state === "finished" || look.state === "crashed";
  if (isLost && !over) return ["lost", "no connection"];
  if (look.state === "stale") return ["stale", `no news for ${fmt.seconds(look.quiet_s)}`];
  return [look.state, over ? `${STATES[look.state]}: ${summary.run.status}` : (STATES[look.state] ?? look.state)];
}

type Shown = { summary: Summary; look?: Look | null; isLost?: boolean };

function Header({ summary, look = null, isLost = false }: Shown) {
  const { run } = summary;
  const [state, words] = stateOf(summary, look, isLost);
  const isLive = state === "live";
  const facts = [
    run.steps.total == null ? "" : `${fmt.count(run.steps.total)} steps`,
    run.duration_s == null ? "" : fmt.seconds(run.duration_s),
    run.world_size > 1 ? `${fmt.count(run.world_size)} ranks` : "",
    run.nodes > 1 ? `${fmt.count(run.nodes)} nodes` : "",
    isLive && look?.steps_per_s != null ? `${look.steps_per_s.toFixed(1)} steps/s` : "",
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

export function RunView({ summary, look = null, isLost = false }: Shown) {
  const isOver = summary.final || look?.state === "crashed";
  const isKnown = hasSteps(summary);
  const hasNews = isKnown || (!isOver && summary.step_time.diagnosis.kind !== "NO_DATA");
  return (
    <article class={isLost ? "lost" : ""}>
      <Header summary={summary} look={look} isLost={isLost} />
      <ModelDiagnostics summary={summary} look={look} />
      {hasNews && <StepTime summary={summary} />}
      {summary.run.world_size > 1 && (summary.series.heatmap?.own_ms.length ?? 0) > 1 && (
        <RankHeatmap summary={summary} />
      )}
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
