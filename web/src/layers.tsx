// Layers, of deep mode: which module takes the time and the memory.
import { useState } from "preact/hooks";
import * as fmt from "./fmt";
import { Card, type Figure, Figures, Table } from "./parts";
import type { Layer, Layers as Found, Summary } from "./types";

const FIRST = 15;

/** Bars are as long as the share of the layer that takes longest allows. */
function Bar({ layer, longest }: { layer: Layer; longest: number }) {
  const wide = (part: number | null): string => `${(90 * (part ?? 0)) / longest}%`;
  const title = `forward ${fmt.share(layer.forward_share)}, backward ${fmt.share(layer.backward_share)}`;
  return (
    <span class="twins" title={title}>
      <i style={{ width: wide(layer.forward_share), background: "var(--blue)" }} />
      <i style={{ width: wide(layer.backward_share), background: "var(--purple)" }} />
    </span>
  );
}

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

const bytes = (value: number | null): string => (value === 0 ? "–" : fmt.size(value));
const ms = (value: number): string => (value === 0 ? "–" : fmt.ms(value));

export function Layers({ summary }: { summary: Summary }) {
  const [isWhole, showWhole] = useState(false);
  const found = summary.layers;
  if (!found) return null;
  const shown = isWhole ? found.layers : found.layers.slice(0, FIRST);
  const longest = Math.max(...found.layers.flatMap((one) => [one.forward_share ?? 0, one.backward_share ?? 0]), 0.01);
  const several = found.ranks.length > 1;
  const rows = shown.map((one) => [
    <span title={`called ${one.calls.toFixed(1)} times per step`}>{one.path}</span>,
    one.type,
    <Bar layer={one} longest={longest} />,
    ms(one.forward_ms),
    ms(one.forward_total_ms),
    ms(one.backward_ms),
    ms(one.backward_total_ms),
    ...(found.recompute_ms ? [ms(one.recompute_ms)] : []),
    bytes(one.parameter_bytes),
    bytes(one.gradient_bytes),
    bytes(one.activation_bytes),
    ...(several ? [`${fmt.ms(one.worst.value)} ${fmt.rank(one.worst.rank)}`] : []),
  ]);
  const head = [
    "Layer",
    "Type",
    "Shares",
    "Forward",
    "with inner",
    "Backward",
    "with inner",
    ...(found.recompute_ms ? ["Recompute"] : []),
    "Parameters",
    "Gradients",
    "Activations",
    ...(several ? ["Worst rank"] : []),
  ];
  const [first, last] = [fmt.plain(found.start_step), fmt.plain(found.end_step)];
  const samples = first === last ? `sampled in step ${first}` : `${fmt.count(found.samples)} sampled steps, ${first} to ${last}`;
  return (
    <Card id="layers" title="Layers" about={`${samples}, ${found.clock ?? "unknown"} clock`}>
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
