// What comes first: what is wrong, where, how much it costs, what to do. Beside it the other diagnoses.
import { Breakdown } from "./breakdown";
import * as fmt from "./fmt";
import { hasSteps, phaseLabel, shownPhases } from "./phases";
import { Badge, type Figure, Figures, Head, severityOf } from "./parts";
import type { Finding, Look, Summary } from "./types";

const SECTIONS = [
  ["step_time", "Step time"],
  ["step_memory", "Step memory"],
  ["system", "System"],
  ["process", "Process"],
] as const;

export function ModelDiagnostics({ summary, look }: { summary: Summary; look: Look | null }) {
  const first = summary.primary_diagnosis;
  const rail = SECTIONS.map(([name, title]) => (
    <Entry key={name} finding={summary[name].diagnosis} name={name} title={title} isFirst={first.section === name} />
  ));
  const label = (
    <>
      <Badge finding={first} big />
      {since(look)}
    </>
  );
  return (
    <Head
      title="Model Diagnostics"
      tone={severityOf(first)}
      label={label}
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
    // Not through the address: its hash is the route of the page.
    event.preventDefault();
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

function since(look: Look | null): string {
  if (!look || look.since_step == null) return "";
  return look.since_start ? ` since step ${look.since_step} or earlier` : ` since step ${look.since_step}`;
}

function figures(summary: Summary): Figure[] {
  const first = summary.primary_diagnosis;
  const rows: Figure[] = [];
  const phase = phaseLabel(first.phase, summary.catalog);
  const where = fmt.list(phase, fmt.ranks(first.ranks));
  if (where) rows.push(["Where", where, first.ranks.length === 1 ? hostOf(summary, first.ranks[0]) : ""]);
  const cost = first.evidence.cost_ms;
  if (typeof cost === "number" && cost > 0) rows.push(["Cost", fmt.ms(cost), "per step"]);
  if (first.potential_speedup != null) {
    const much = first.potential_is_bound === false ? "about" : "at most";
    rows.push([
      "Gain",
      `${much} ${fmt.factor(first.potential_speedup)} as fast`,
      first.potential_how ? `(${first.potential_how})` : "",
    ]);
  }
  return rows;
}

function hostOf(summary: Summary, rank: number | undefined): string {
  const host = summary.step_time.ranks[String(rank)]?.identity.host;
  return host && summary.run.nodes > 1 ? `on ${host}` : "";
}

/** How a run ended that did not complete; the first rank that ended, unless the reason names it. */
function Ended({ summary }: { summary: Summary }) {
  const { run } = summary;
  if (["completed", "running", "unknown"].includes(run.status)) return null;
  const reason = run.reason ?? "no Python exception was seen";
  const first = reason.includes("ended first") ? null : run.ranks.ended_first;
  return (
    <div class="ended">
      {first && (
        <p>
          <b>{first.together ? "Ended together, among others" : "Ended first"}</b>{" "}
          {fmt.list(
            fmt.rank(first.rank),
            first.signal && `killed by ${first.signal}`,
            first.step != null && `after step ${first.step}`,
            first.phase && `in ${first.phase}`,
          )}
        </p>
      )}
      <p>
        <b>Ended</b> {run.status}: {reason}
        {run.exit_code == null ? "" : ` (exit code ${run.exit_code})`}
      </p>
    </div>
  );
}
