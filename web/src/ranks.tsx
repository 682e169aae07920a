// The per-rank table. Only the rows in sight exist, so that 4,096 ranks scroll smoothly.
import { useState } from "preact/hooks";
import { useEvents } from "./chart";
import * as fmt from "./fmt";
import { shownPhases, type Phase } from "./phases";
import { Card, Ribbon } from "./parts";
import type { Num, Summary } from "./types";

const ROW = 30;
const IN_SIGHT = 14;
const SPARE = 6;
const MOST_PRINTED = 256;

type Column = { key: string; label: string; value: (rank: string) => Num | string; show: (value: Num) => string };

function columnsOf(summary: Summary, phases: Phase[]): Column[] {
  const { step_time, step_memory, process } = summary;
  const time = (key: string, label: string): Column => {
    const value = (rank: string): Num => step_time.ranks[rank]?.metrics[key] ?? null;
    return { key, label, value, show: fmt.ms };
  };
  const held = step_memory.window.memory === "device" ? "peak_allocated_bytes" : "rss_bytes";
  const memory = (rank: string): Num => step_memory.ranks[rank]?.metrics[held] ?? null;
  return [
    { key: "rank", label: "Rank", value: (rank) => Number(rank), show: (value) => fmt.rank(value) },
    { key: "host", label: "Host", value: (rank) => step_time.ranks[rank]?.identity.host ?? "", show: String },
    time("step_ms", "Step Time"),
    ...phases
      .filter((phase) => Object.values(step_time.ranks).some((m) => m.metrics[phase.key] != null))
      .map((p) => time(p.key, p.label)),
    { key: "memory", label: "Memory", value: memory, show: fmt.size },
    { key: "cpu", label: "CPU", value: (rank) => process.ranks[rank]?.metrics.cpu_percent ?? null, show: fmt.percent },
  ];
}

function compare(a: Num | string, b: Num | string): number {
  if (typeof a === "string" || typeof b === "string")
    return String(a ?? "").localeCompare(String(b ?? ""), "en", { numeric: true });
  return (a ?? -Infinity) - (b ?? -Infinity) || 0;
}

/** Whether the page is being printed: paper does not scroll. */
function usePrinting(): boolean {
  const [isPrinting, setPrinting] = useState(false);
  useEvents(["beforeprint", "afterprint"], (event) => setPrinting(event.type === "beforeprint"));
  return isPrinting;
}

export function RankTable({ summary }: { summary: Summary }) {
  const phases = shownPhases(summary);
  const columns = columnsOf(summary, phases);
  const [order, setOrder] = useState<[string, 1 | -1]>(["", 1]);
  const [top, setTop] = useState(0);
  const isPrinting = usePrinting();
  const sorted = columns.find((column) => column.key === order[0]) ?? columns[0];
  const ranks = Object.keys(summary.step_time.ranks);
  if (!sorted || ranks.length < 2) return null;
  const named = new Set(summary.primary_diagnosis.ranks.map(String));
  const apart = (a: string, b: string): number =>
    order[0] ? order[1] * compare(sorted.value(a), sorted.value(b)) : Number(named.has(b)) - Number(named.has(a));
  ranks.sort((a, b) => apart(a, b) || Number(a) - Number(b));
  const metrics = (rank: string): Record<string, Num> => summary.step_time.ranks[rank]?.metrics ?? {};
  const longest = ranks.reduce((most, rank) => Math.max(most, metrics(rank).step_ms ?? 0), 0);
  const size = isPrinting ? MOST_PRINTED : IN_SIGHT + 2 * SPARE;
  const first = isPrinting ? 0 : Math.max(0, Math.min(Math.floor(top / ROW) - SPARE, ranks.length - size));
  const shown = ranks.slice(first, first + size);
  const all = Math.max(summary.run.ranks.used.length, ranks.length);
  const about =
    ranks.length < all
      ? `${fmt.count(ranks.length)} of ${fmt.count(all)} ranks: those that a finding names, and some others`
      : `${fmt.count(all)} ranks`;
  const sort = (key: string): void =>
    setOrder(([old, way]) => [key, old === key ? (way === 1 ? -1 : 1) : key === "rank" || key === "host" ? 1 : -1]);
  return (
    <Card id="ranks" title="Ranks" about={about}>
      <div
        class="scroll tall"
        tabIndex={0}
        role="region"
        aria-label="Numbers of each rank"
        style={{ maxHeight: isPrinting ? "none" : `${ROW * (IN_SIGHT + 1)}px` }}
        onScroll={(event) => setTop((event.currentTarget as HTMLElement).scrollTop)}
      >
        <table class="ranks" aria-rowcount={ranks.length + 1}>
          <caption class="hidden">Means of each rank. The buttons in the head sort the rows.</caption>
          <thead>
            <tr>
              {columns.map((column) => (
                <th
                  key={column.key}
                  scope="col"
                  class={column.key === "host" ? "words" : "number"}
                  aria-sort={order[0] === column.key ? (order[1] === 1 ? "ascending" : "descending") : "none"}
                >
                  <button type="button" onClick={() => sort(column.key)}>
                    {column.label}
                    <span aria-hidden="true">{order[0] === column.key ? (order[1] === 1 ? " ▲" : " ▼") : ""}</span>
                  </button>
                </th>
              ))}
              <th scope="col" class="words split">
                Split
              </th>
            </tr>
          </thead>
          <tbody>
            <tr aria-hidden="true" class="gap" style={{ height: `${first * ROW}px` }} />
            {shown.map((rank, at) => (
              <tr key={rank} class={named.has(rank) ? "named" : ""} aria-rowindex={first + at + 2}>
                {columns.map((column) => {
                  const value = column.value(rank);
                  const text = typeof value === "string" ? value : column.show(value);
                  const Cell = column.key === "rank" ? "th" : "td";
                  return (
                    <Cell
                      key={column.key}
                      class={column.key === "host" ? "words" : "number"}
                      {...(Cell === "th" ? { scope: "row" } : {})}
                    >
                      {column.key === "rank" && named.has(rank) ? `▸ ${text}` : text}
                    </Cell>
                  );
                })}
                <td class="words split">
                  <Ribbon
                    thin
                    label={`Rank ${rank}`}
                    whole={longest}
                    pieces={phases.map((phase) => ({ phase, value: metrics(rank)[phase.key] ?? null }))}
                  />
                </td>
              </tr>
            ))}
            <tr
              aria-hidden="true"
              class="gap"
              style={{ height: isPrinting ? 0 : `${Math.max(0, ranks.length - first - shown.length) * ROW}px` }}
            />
          </tbody>
        </table>
      </div>
      {isPrinting && ranks.length > MOST_PRINTED && <p class="foot">The first {MOST_PRINTED} ranks are printed.</p>}
      {named.size > 0 && <p class="foot">▸ named by the verdict; first, until you sort the rows</p>}
    </Card>
  );
}
