// Two runs: the verdict, what the change of the step consists of, and the tables of `traceml compare`.
import * as fmt from "./fmt";
import { COLOURS, GUIDE, phasesOf } from "./phases";
import { Bullets, Card, type Figure, Figures, Head, Legend, Line, Ribbon, Table, TableCard } from "./parts";
import type { Compared, Comparison, Num, Side } from "./types";

const SEVERITY: Record<string, string> = {
  IMPROVEMENT: "good",
  REGRESSION: "crit",
  MIXED: "warn",
  "NO CHANGE": "info",
  INCONCLUSIVE: "none",
};
const SIGN: Record<string, string> = { IMPROVEMENT: "▼ ", REGRESSION: "▲ ", MIXED: "◆ " };

const signedShare = (value: Num): string => (value == null ? fmt.MISSING : fmt.signed(fmt.share(value)));

function figures({ interval }: Comparison): Figure[] {
  const rows: Figure[] = [
    [`A, per ${interval.basis}`, fmt.ms(interval.a_ms)],
    [`B, per ${interval.basis}`, fmt.ms(interval.b_ms)],
    ["Change", signedShare(interval.delta_share)],
  ];
  const [low, high] = [interval.low_share, interval.high_share];
  if (low != null && high != null && interval.confidence != null)
    rows.push([`${(100 * interval.confidence).toFixed(0)} % interval`, `${signedShare(low)} to ${signedShare(high)}`]);
  return rows;
}

export function CompareView({ comparison: found, shift, tables }: Compared) {
  const tone = SEVERITY[found.verdict] ?? "info";
  const label = (
    <>
      <span class={`badge big ${tone}`}>
        <span aria-hidden="true">{SIGN[found.verdict] ?? ""}</span>
        {found.verdict}
      </span>{" "}
      {shift}
    </>
  );
  const rail = (["a", "b"] as const).map((side) => <About letter={side.toUpperCase()} side={found[side]} />);
  const moved = found.moved.map((one) => [
    one.node == null ? fmt.ranks(one.ranks) : `node ${one.node}`,
    one.label,
    fmt.ms(one.a_ms),
    fmt.ms(one.b_ms),
    fmt.signed(fmt.ms(one.delta_ms)),
    fmt.signed(fmt.ms(one.others_delta_ms)),
  ]);
  const differences = found.differences.map((one) => [one.what, one.a, one.b, one.matters ? "" : "context"]);
  return (
    <article>
      <div class="run">
        <h1>
          {found.a.name} <span class="facts">against</span> {found.b.name}
        </h1>
      </div>
      <Head title="Comparison" tone={tone} label={label} why={found.why} next={found.next} rail={rail}>
        <Figures rows={figures(found)} />
      </Head>
      <Waterfall found={found} />
      <Card id="tables" title="What changed" about="delta = B − A">
        <div class="columns tight">
          {tables.map(([name, rows]) => (
            <Table key={name} caption={name} head={["", "A", "B", "Delta"]} rows={rows} />
          ))}
        </div>
      </Card>
      <TableCard
        id="moved"
        title="Ranks that changed on their own"
        head={["", "Phase", "A", "B", "Delta", "Others"]}
        words={[1]}
        rows={moved}
      />
      <TableCard
        id="differences"
        title="Not the same in A and B"
        head={["", "A", "B", ""]}
        words={[1, 2, 3]}
        rows={differences}
      />
      <Bullets id="warnings" title="Warnings" lines={found.warnings} />
    </article>
  );
}

function About({ letter, side }: { letter: string; side: Side }) {
  return (
    <div class="entry">
      <span class="title">{letter}</span>
      <b>{side.name}</b>
      {side.runs.slice(0, 8).map((run, at) => (
        <span class="evidence" key={at}>
          {fmt.list(
            side.runs.length > 1 && run.name,
            run.steps != null && `${fmt.count(run.steps)} steps`,
            fmt.moment(run.started_at),
            run.status,
          )}
        </span>
      ))}
    </div>
  );
}

/** Both steps as bars of their phases, and between them the phases that explain the change. */
function Waterfall({ found }: { found: Comparison }) {
  const labels = Object.entries(found.metrics).map(([key, one]) => ({ ...one, key, help: "" }));
  const phases = phasesOf(Object.keys(found.metrics), labels);
  const pieces = (side: "a" | "b") =>
    phases.map((phase) => ({ phase, value: found.metrics[phase.key]?.[side] ?? null }));
  const total = (side: "a" | "b"): number => pieces(side).reduce((sum, piece) => sum + (piece.value ?? 0), 0);
  const step = found.metrics.step_ms;
  let at = step?.a ?? 0;
  const spans = found.explained_by.map((cause) => ({ cause, from: at, to: (at += cause.delta_ms) }));
  const ends = spans.flatMap(({ from, to }) => [from, to]);
  const whole = Math.max(total("a"), total("b"), step?.a ?? 0, step?.b ?? 0, ...ends) || 1;
  const part = (value: number): number => (100 * Math.max(value, 0)) / whole;
  const bars = spans.map(({ cause, from, to }) => ({
    ...cause,
    name: `${GUIDE[`${cause.phase}_ms`] ?? cause.label} ${fmt.rank(cause.rank)}`.trim(),
    delta: fmt.signed(fmt.ms(cause.delta_ms)),
    place: {
      left: `${part(Math.min(from, to))}%`,
      width: `${Math.max(0.4, Math.abs(part(to) - part(from)))}%`,
      background: COLOURS[cause.phase] ?? "var(--blue)",
    },
  }));
  if (!total("a") && !total("b")) return null;
  return (
    <Card
      id="waterfall"
      title="Phase waterfall"
      about={bars.length ? "from the step of A to the step of B" : "no phase explains a change"}
    >
      <div class="breakdown">
        <Line name="A" sum={fmt.ms(step?.a)}>
          <Ribbon pieces={pieces("a")} whole={whole} label="A" />
        </Line>
        {bars.map((bar) => (
          <Line key={bar.name} name={bar.name} sum={[bar.delta, " ", <small>{fmt.share(bar.share)} of it</small>]}>
            <div class="fall" role="img" aria-label={`${bar.name}: ${bar.delta}`}>
              <span class={bar.delta_ms > 0 ? "more" : "less"} style={bar.place} />
            </div>
          </Line>
        ))}
        <Line name="B" sum={fmt.ms(step?.b)}>
          <Ribbon pieces={pieces("b")} whole={whole} label="B" />
        </Line>
        <Legend pieces={pieces("b").filter((piece) => piece.value != null && piece.value > 0)} />
      </div>
    </Card>
  );
}
