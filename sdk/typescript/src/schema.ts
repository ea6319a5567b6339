/** Validation of payloads with any library that implements Standard Schema v1: zod, valibot, arktype and others. */

/** The interface of Standard Schema v1 (https://standardschema.dev). */
export interface StandardSchema<Input = unknown, Output = Input> {
  /** The properties of the standard. */
  readonly "~standard": {
    readonly version: 1;
    readonly vendor: string;
    readonly validate: (value: unknown) => SchemaResult<Output> | Promise<SchemaResult<Output>>;
    readonly types?: { readonly input: Input; readonly output: Output } | undefined;
  };
}

/** The result of a validation. */
export type SchemaResult<Output> =
  | { readonly value: Output; readonly issues?: undefined }
  | { readonly issues: ReadonlyArray<SchemaIssue> };

/** One reason why a value is invalid. */
export interface SchemaIssue {
  /** The reason for people. */
  readonly message: string;
  /** The place in the value. */
  readonly path?: ReadonlyArray<PropertyKey | { readonly key: PropertyKey }> | undefined;
}

/** What a producer passes to a schema. */
export type SchemaInput<S> = S extends StandardSchema<infer Input, unknown> ? Input : never;

/** What a handler receives from a schema. */
export type SchemaOutput<S> = S extends StandardSchema<infer _Input, infer Output> ? Output : never;

/** A payload that its schema rejects. */
export class InvalidPayload extends Error {
  /** The reasons. */
  readonly issues: ReadonlyArray<SchemaIssue>;

  /** @internal */
  constructor(kind: string, issues: ReadonlyArray<SchemaIssue>) {
    const reasons = issues.map(({ path = [], message }) => {
      const keys = path.map((part) => String(typeof part === "object" ? part.key : part));
      return keys.length > 0 ? `${keys.join(".")}: ${message}` : message;
    });
    super(`invalid payload for ${kind}: ${reasons.join("; ")}`);
    this.name = "InvalidPayload";
    this.issues = issues;
  }
}

/** Returns the value as its schema parses it. A payload that was left out travels as `null`. */
export async function parse(kind: string, schema: StandardSchema | undefined, value: unknown): Promise<unknown> {
  if (schema === undefined) return value;
  const { validate } = schema["~standard"];
  const result = await validate(value);
  if (!result.issues) return result.value;
  const absent = value === null ? await validate(undefined) : result;
  if (absent.issues) throw new InvalidPayload(kind, result.issues);
  return absent.value;
}

/** A value after a round trip through JSON: dates become strings, methods disappear. */
export type Jsonify<T> = unknown extends T
  ? T
  : T extends { toJSON(): infer J }
    ? Jsonify<J>
    : T extends string | number | boolean | null | undefined
      ? T
      : T extends bigint | symbol | ((...parameters: never[]) => unknown)
        ? never
        : T extends readonly unknown[]
          ? { [K in keyof T]: Jsonify<T[K]> }
          : T extends object
            ? {
                [K in keyof T as T[K] extends symbol | ((...parameters: never[]) => unknown) ? never : K]: Jsonify<
                  T[K]
                >;
              }
            : T;

/** The result of a job: what its handler returns, after a round trip through JSON. Nothing becomes `null`. */
// biome-ignore lint/suspicious/noConfusingVoidType: handlers without a result return void.
export type JsonResult<T> = [T] extends [never] ? never : T extends undefined | void ? null : Jsonify<T>;
