// Numbers as text, exactly as schema/fmt.py writes them.
import type { Num } from "./data";

export const MISSING = "n/a";

const grouped = (value: number, digits: number): string =>
  value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });

export function ms(value: Num | undefined): string {
  if (value == null) return MISSING;
  const size = Math.abs(value);
  if (size >= 60_000) return `${(value / 60_000).toFixed(1)} min`;
  if (size >= 10_000) return `${(value / 1000).toFixed(1)} s`;
  if (size >= 10 || size === 0) return `${value.toFixed(1)} ms`;
  if (size >= 0.1) return `${value.toFixed(2)} ms`;
  return `${(value * 1000).toFixed(1)} µs`;
}

export const percent = (value: Num | undefined): string => (value == null ? MISSING : `${value.toFixed(1)} %`);

export const share = (value: Num | undefined): string => (value == null ? MISSING : percent(100 * value));

export const skew = (value: Num | undefined): string => (value != null && value >= 9.995 ? "> 999 %" : share(value));

export function size(value: Num | undefined): string {
  if (value == null) return MISSING;
  const units: [string, number, number][] = [
    ["TB", 1e12, 2],
    ["GB", 1e9, 2],
    ["MB", 1e6, 1],
    ["kB", 1e3, 1],
  ];
  for (const [unit, factor, digits] of units) {
    if (Math.abs(value) >= factor) return `${(value / factor).toFixed(digits)} ${unit}`;
  }
  return `${value.toFixed(0)} B`;
}

export const count = (value: Num | undefined): string => (value == null ? MISSING : grouped(value, 0));

export const plain = (value: Num | undefined): string => (value == null ? MISSING : `${value}`);

export const rank = (value: Num | undefined): string => (value == null ? "" : `r${value}`);

export function rate(value: Num | undefined, noun = ""): string {
  if (value == null) return MISSING;
  return (value >= 100 ? grouped(value, 0) : value.toFixed(1)) + (noun ? ` ${noun}/s` : "");
}

export function seconds(value: Num | undefined): string {
  if (value == null) return MISSING;
  if (value < 60) return value < 1 ? ms(value * 1000) : `${value.toFixed(1)} s`;
  const whole = Math.round(value);
  const minutes = Math.floor(whole / 60);
  const two = (number: number): string => String(number).padStart(2, "0");
  if (minutes >= 60) return `${Math.floor(minutes / 60)} h ${two(minutes % 60)} min`;
  return `${minutes} min ${two(whole % 60)} s`;
}

export const factor = (value: Num): string => (value == null ? MISSING : `${value.toFixed(2)}x`);

const BY_UNIT: Record<string, (value: number) => string> = {
  ms,
  bytes: size,
  percent,
  per_s: rate,
  c: (value) => `${value.toFixed(0)} °C`,
  w: (value) => `${value.toFixed(0)} W`,
};

export const inUnit = (unit: string, value: Num | undefined): string =>
  value == null ? MISSING : (BY_UNIT[unit] ?? count)(value);

export const signed = (text: string): string => (text.startsWith("-") ? text : `+${text}`);

/** The parts that are there, with commas between them. */
export const list = (...parts: (string | number | null | undefined | false)[]): string =>
  parts.filter((part) => part || part === 0).join(", ");

/** Ranks by name, at most eight. */
export const ranks = (all: number[]): string =>
  list(...all.slice(0, 8).map(rank)) + (all.length > 8 ? ` and others (${all.length} ranks)` : "");

/** The time of day and the date, as they were written, without fractions and zone. */
export const moment = (text: string | null): string => (text ? text.replace("T", " ").slice(0, 16) : "");
