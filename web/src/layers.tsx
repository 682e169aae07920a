// Layers, of deep mode: which module takes the time and the memory.
import { useState } from "preact/hooks";
import type { Layers as Found, Num, Summary } from "./data";
import * as fmt from "./fmt";
import { Card, type Figure, Figures, Table } from "./parts";

const FIRST = 15;

function figures(found: Found): Figure[] {
  const recompute: Figure[] = found.recompute_ms ? [["Recomputed", fmt.ms(found.recompute_ms), "in backward"]] : [];
  return [
    ["Forward", fmt.ms(found.forward_ms)],
    ["Backward", fmt.ms(found.backward_ms), `${fmt.share(found.outside_share)} outside of layers`],
    ...recompute,
    ["Parameters", fmt.size(found.parameter_bytes)],
    ["Gradients", fmt.size(found.gradient_bytes)],
    ["Activations", fmt.size(found.activation_bytes), `${fmt.size(found.outside_bytes)} outside of layers`],
  ];
}

const orDash = (show: (value: Num) => string, value: Num): string => (value === 0 ? "–" : show(value));
const ms = (value: number): string => orDash(fmt.ms, value);
const size = (value: Num): string => orDash(fmt.size, value);

export function Layers({ summary: { layers: found } }: { summary: Summary }) {
  const [isWhole, showWhole] = useState(false);
  if (!found) return null;
  // Bars are as long as the share of the layer that takes longest allows.
  const longest = Math.max(...found.layers.flatMap((one) => [one.forward_share ?? 0, one.backward_share ?? 0]), 0.01);
  const bar = (share: Num, colour: string) => (
    <i style={{ width: `${(90 * (share ?? 0)) / longest}%`, background: `var(${colour})` }} />
  );
  const several = found.ranks.length > 1;
  const rows = found.layers.slice(0, isWhole ? undefined : FIRST).map((one) => [
    <span title={`called ${one.calls.toFixed(1)} times per step`}>{one.path}</span>,
    one.type,
    <span class="twins" title={`forward ${fmt.share(one.forward_share)}, backward ${fmt.share(one.backward_share)}`}>
      {bar(one.forward_share, "--blue")}
      {bar(one.backward_share, "--purple")}
    </span>,
    ms(one.forward_ms),
    ms(one.forward_total_ms),
    ms(one.backward_ms),
    ms(one.backward_total_ms),
    ...(found.recompute_ms ? [ms(one.recompute_ms)] : []),
    size(one.parameter_bytes),
    size(one.gradient_bytes),
    size(one.activation_bytes),
    ...(several ? [`${fmt.ms(one.worst.value)} ${fmt.rank(one.worst.rank)}`] : []),
  ]);
  const head = [
    ...["Layer", "Type", "Shares", "Forward", "with inner", "Backward", "with inner"],
    ...(found.recompute_ms ? ["Recompute"] : []),
    ...["Parameters", "Gradients", "Activations"],
    ...(several ? ["Worst rank"] : []),
  ];
  const [first, last] = [fmt.plain(found.start_step), fmt.plain(found.end_step)];
  const steps = first === last ? `sampled in step ${first}` : `${fmt.count(found.samples)} sampled steps, ${first} to ${last}`;
  return (
    <Card id="layers" title="Layers" about={`${steps}, ${found.clock ?? "unknown"} clock`}>
      <Figures rows={figures(found)} />
      <Table caption="Layers: time and memory per step" head={head} rows={rows} words={[1, 2]} hideCaption />
      {found.layers.length > FIRST && (
        <button class="button" type="button" onClick={() => showWhole(!isWhole)}>
          {isWhole ? "Show fewer" : `Show ${fmt.count(found.layers.length)} of ${fmt.count(found.count)} layers`}
        </button>
      )}
      <p class="foot">
        A layer's own time and memory; “with inner” adds the layers that it calls. Shares: forward above, backward below.
      </p>
      {found.notes.map((note) => (
        <p key={note}>{note}</p>
      ))}
    </Card>
  );
}
