// Two runs: the verdict, what the change of the step consists of, and the tables of `traceml compare`.
import { COLOURS, type Compared, type Comparison, labelOf, type Num, phasesOf, type Side } from "./data";
import * as fmt from "./fmt";
import { Bullets, Card, type Figure, Figures, Head, Legend, Line, Ribbon, Table, TableCard } from "./parts";

/** The tone and the sign of each verdict. */
const VERDICTS: Record<string, [tone: string, sign: string]> = {
  IMPROVEMENT: ["good", "▼"],
  REGRESSION: ["crit", "▲"],
  MIXED: ["warn", "◆"],
  INCONCLUSIVE: ["none", ""],
};
const MOVED = ["", "Phase", "A", "B", "Delta", "Others"];
const DIFFER = ["", "A", "B", ""];

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
  const [tone, sign] = VERDICTS[found.verdict] ?? ["info", ""];
  const badge = (
    <span class={`badge big ${tone}`}>
      {sign && <span aria-hidden="true">{sign}</span>}
      {found.verdict}
    </span>
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
      <Head title="Comparison" tone={tone} label={[badge, " ", shift]} why={found.why} next={found.next} rail={rail}>
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
      <TableCard id="moved" title="Ranks that changed on their own" head={MOVED} words={[1]} rows={moved} />
      <TableCard id="differences" title="Not the same in A and B" head={DIFFER} words={[1, 2, 3]} rows={differences} />
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
  const labels = Object.entries(found.metrics).map(([key, { label }]) => ({ key, label }));
  const phases = phasesOf(Object.keys(found.metrics), labels);
  const [a, b] = (["a", "b"] as const).map((side) => {
    const pieces = phases.map((phase) => ({ phase, value: found.metrics[phase.key]?.[side] ?? null }));
    const total = pieces.reduce((sum, piece) => sum + (piece.value ?? 0), 0);
    return { pieces, total, step: found.metrics.step_ms?.[side] ?? null, name: side.toUpperCase() };
  });
  if (!a || !b || (!a.total && !b.total)) return null;
  let at = a.step ?? 0;
  const spans = found.explained_by.map((cause) => ({ ...cause, from: at, to: (at += cause.delta_ms) }));
  const ends = spans.flatMap(({ from, to }) => [from, to]);
  const whole = Math.max(a.total, b.total, a.step ?? 0, b.step ?? 0, ...ends) || 1;
  const part = (value: number): number => (100 * Math.max(value, 0)) / whole;
  const [first, last] = [a, b].map(({ name, step, pieces }) => (
    <Line name={name} sum={fmt.ms(step)}>
      <Ribbon pieces={pieces} whole={whole} label={name} />
    </Line>
  ));
  const bars = spans.map(({ phase, label, rank, share, delta_ms, from, to }) => {
    const name = `${labelOf(`${phase}_ms`, [{ key: `${phase}_ms`, label }])} ${fmt.rank(rank)}`.trim();
    const delta = fmt.signed(fmt.ms(delta_ms));
    const place = {
      left: `${part(Math.min(from, to))}%`,
      width: `${Math.max(0.4, Math.abs(part(to) - part(from)))}%`,
      background: COLOURS[phase] ?? "var(--blue)",
    };
    return (
      <Line key={name} name={name} sum={[delta, " ", <small>{fmt.share(share)} of it</small>]}>
        <div class="fall" role="img" aria-label={`${name}: ${delta}`}>
          <span class={delta_ms > 0 ? "more" : "less"} style={place} />
        </div>
      </Line>
    );
  });
  const about = bars.length ? "from the step of A to the step of B" : "no phase explains a change";
  return (
    <Card id="waterfall" title="Phase waterfall" about={about}>
      <div class="breakdown">
        {first}
        {bars}
        {last}
        <Legend pieces={b.pieces} />
      </div>
    </Card>
  );
}
