// Small pieces that several views use: cards, badges, key figures, tables, ribbons.
import type { ComponentChildren } from "preact";
import type { Finding, Num, Phase, Primary } from "./data";
import * as fmt from "./fmt";

/** The sign and the word of each severity. */
const SEVERITIES: Record<string, [string, string]> = { crit: ["●", "critical"], warn: ["▲", "warning"] };

type Judged = Pick<Finding, "status" | "severity" | "kind">;

export const severityOf = ({ severity, kind }: Judged): string =>
  kind === "NO_DATA" ? "none" : severity in SEVERITIES ? severity : "info";

/** A diagnosis with its severity as a sign, a word and a colour. */
export function Badge({ finding, big }: { finding: Judged; big?: boolean }) {
  const [sign, word] = SEVERITIES[finding.severity] ?? [];
  return (
    <span class={`badge ${severityOf(finding)}${big ? " big" : ""}`}>
      <span class="status">
        {sign && <span aria-hidden="true">{sign} </span>}
        {finding.status}
      </span>
      {word && <span class="word">{word}</span>}
    </span>
  );
}

type CardProps = { id: string; title: string; about?: string; children: ComponentChildren };

export function Card(props: CardProps) {
  return (
    <section class="card" id={props.id} aria-labelledby={`${props.id}-title`}>
      <header>
        <h2 id={`${props.id}-title`}>{props.title}</h2>
        {props.about && <span class="about">{props.about}</span>}
      </header>
      {props.children}
    </section>
  );
}

/** A card with one table, if there is anything in it. */
export function TableCard(
  props: { id: string; title: string; about?: string; foot?: string } & Omit<TableProps, "caption">,
) {
  if (!props.rows.length) return null;
  const { id, title, about = "", foot, ...table } = props;
  return (
    <Card id={id} title={title} about={about}>
      <Table caption={title} hideCaption {...table} />
      {foot && <p class="foot">{foot}</p>}
    </Card>
  );
}

/** A sentence in which backticks mark code. */
export function Words({ text }: { text: string }) {
  const parts = text.split("`");
  return <>{parts.length % 2 ? parts.map((part, at) => (at % 2 ? <code key={at}>{part}</code> : part)) : text}</>;
}

/** A card with sentences, if there are any. */
export function Bullets({ id, title, lines }: { id: string; title: string; lines: string[] }) {
  if (!lines.length) return null;
  return (
    <Card id={id} title={title}>
      <ul>
        {lines.map((line, at) => (
          <li key={at}>
            <Words text={line} />
          </li>
        ))}
      </ul>
    </Card>
  );
}

interface HeadProps {
  title: string;
  tone: string;
  label: ComponentChildren;
  why: string;
  next: string;
  first?: ComponentChildren;
  children: ComponentChildren;
  rail: ComponentChildren;
}

/** The first card: the verdict with its reason, what to do next, and on the side what belongs to it. */
export function Head({ title, tone, label, why, next, first, children, rail }: HeadProps) {
  return (
    <section class={`card verdict ${tone}`} aria-labelledby="verdict-title">
      <div class="main">
        <h2 id="verdict-title">{title}</h2>
        {first}
        <div role="status" aria-live="polite" class="said">
          <p class="label">{label}</p>
          <p class="why">
            <Words text={why} />
          </p>
        </div>
        {next && (
          <p class="next">
            <b>Next</b> <Words text={next} />
          </p>
        )}
        {children}
      </div>
      <nav class="rail" aria-label="Details">
        {rail}
      </nav>
    </section>
  );
}

export type Figure = [label: string, value: string, more?: string];

export function Figures({ rows }: { rows: Figure[] }) {
  return (
    <dl class="figures">
      {rows.map(([label, value, more]) => (
        <div key={label}>
          <dt>{label}</dt>
          <dd>
            {value}
            {more && <small> {more}</small>}
          </dd>
        </div>
      ))}
    </dl>
  );
}

export interface TableProps {
  caption: string;
  head: string[];
  rows: ComponentChildren[][];
  hideCaption?: boolean;
  words?: number[];
}

/** A table that scrolls by itself where it is too wide. Columns in `words` hold text, the others numbers. */
export function Table({ caption, head, rows, hideCaption, words = [] }: TableProps) {
  const kind = (at: number): string => (at === 0 || words.includes(at) ? "words" : "number");
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label={caption}>
      <table>
        <caption class={hideCaption ? "hidden" : ""}>{caption}</caption>
        <thead>
          <tr>
            {head.map((text, at) => (
              <th key={at} scope="col" class={kind(at)}>
                {text}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row, line) => (
            <tr key={line}>
              {row.map((cell, at) => {
                const Cell = at ? "td" : "th";
                return (
                  <Cell key={at} class={kind(at)} {...(at ? {} : { scope: "row" })}>
                    {cell}
                  </Cell>
                );
              })}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

type Piece = { phase: Phase; value: Num; share?: Num };
const isThere = (piece: Piece): boolean => (piece.value ?? 0) > 0;

type RibbonProps = { pieces: Piece[]; whole: number; label: string; thin?: boolean; show?: (value: Num) => string };

/** One step as a bar of its phases. `whole` is the length of a full bar; what is too small keeps its place. */
export function Ribbon({ pieces, whole, label, thin, show = fmt.ms }: RibbonProps) {
  const shown = pieces.filter(isThere);
  const text = `${label}: ${shown.map((piece) => `${piece.phase.label} ${show(piece.value)}`).join(", ")}`;
  return (
    <div class={`ribbon${thin ? " thin" : ""}`} role="img" aria-label={text}>
      {shown.map(({ phase, value }) => {
        const wide = (100 * (value ?? 0)) / whole;
        return (
          <span
            key={phase.key}
            title={`${phase.label}: ${show(value)}`}
            style={{ width: `${wide}%`, background: phase.colour, color: phase.ink }}
          >
            {!thin && wide > 7 ? phase.label : ""}
          </span>
        );
      })}
    </div>
  );
}

/** A bar with its name before it and its sum after it. */
export function Line({ name, sum, children }: { name: string; sum: ComponentChildren; children: ComponentChildren }) {
  return (
    <div class="line">
      <span class="name">{name}</span>
      {children}
      <b class="sum">{sum}</b>
    </div>
  );
}

export function Legend({ pieces }: { pieces: Piece[] }) {
  return (
    <ul class="legend">
      {pieces.filter(isThere).map(({ phase, value, share }) => (
        <li key={phase.key}>
          <span class="swatch" style={{ background: phase.colour }} aria-hidden="true" />
          {phase.label} <b>{fmt.ms(value)}</b>
          {share != null && <small> {fmt.share(share)}</small>}
        </li>
      ))}
    </ul>
  );
}

/** Every finding of a section, except the one that the page begins with. */
export function Findings({ name, issues, first }: { name: string; issues: Finding[]; first: Primary }) {
  const others = issues.filter((issue) => first.section !== name || first.kind !== issue.kind);
  if (!others.length) return null;
  return (
    <ul class="findings">
      {others.map((issue, at) => (
        <li key={`${issue.kind}${at}`}>
          <Badge finding={issue} />{" "}
          <span class="why">
            <Words text={issue.summary} />
          </span>
          {issue.severity !== "info" && (
            <p class="next">
              <b>Next</b> <Words text={issue.action} />
            </p>
          )}
        </li>
      ))}
    </ul>
  );
}
