/** State in the memory of an instance of the core. */

import type { Clock } from "./clock.js";
import { Code, Core, NO_BYTES, type Answer, type Key, type KeyedCost, type Operation, type Source } from "./core.js";
import { SluicegateError } from "./errors.js";
import type { Store } from "./store.js";

/** Usage of the table of a limiter in memory. */
export interface Usage {
  /** Keys, those included that have recovered and are not yet forgotten. */
  readonly keys: number;
  readonly bytes: number;
  readonly maxBytes: number;
}

/** @internal A store in this process, which answers now. */
export class MemoryStore implements Store {
  readonly core = new Core();
  readonly #clock: Clock;

  constructor(maxBytes: number, clock: Clock) {
    this.#clock = clock;
    this.core.wasm.open(maxBytes);
  }

  /** Takes units, and returns the source. The integers are in the numbers of the core; nothing is copied. */
  take(key: Key, policy: string, cost: number): Source {
    const { core } = this;
    const handle = core.policy(policy);
    const status = core.wasm.apply(Code.Take, core.key(key), 0, handle, cost, -1, this.#clock.now());
    if (status === 1) return "store";
    core.check(status);
    return core.source;
  }

  apply(key: Key, policy: string, { code, cost, span, id }: Operation): Answer {
    const { core } = this;
    const handle = core.policy(policy);
    const length = core.key(key);
    core.check(core.wasm.apply(code, length, core.append(id, length), handle, cost, span, this.#clock.now()));
    return core.answer();
  }

  applyAll(keys: readonly KeyedCost[], { code, span, id }: Operation): Answer {
    const { core } = this;
    core.keys(keys, id);
    core.check(core.wasm.apply_all(code, keys.length, id.length, span, this.#clock.now()));
    return core.answer(keys.length);
  }

  takeMany(takes: readonly KeyedCost[]): (Answer | SluicegateError)[] {
    return takes.map(({ key, policy, cost }) => {
      try {
        return this.apply(key, policy, { code: Code.Take, cost, span: -1, id: NO_BYTES });
      } catch (error) {
        if (error instanceof SluicegateError) return error;
        throw error;
      }
    });
  }

  reset(key: Key): boolean {
    return this.core.wasm.reset(this.core.key(key), this.#clock.now()) === 1;
  }

  usage(): Usage {
    this.core.wasm.usage();
    const [keys = 0, bytes = 0, maxBytes = 0] = this.core.numbers;
    return { keys, bytes, maxBytes };
  }

  close(): void {
    // The instance is freed with the limiter.
  }
}
