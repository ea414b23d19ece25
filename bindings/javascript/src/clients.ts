/** Clients of Redis and Valkey, as applications have them, behind one function that sends a command. */

import { SettingsError } from "./errors.js";

/** A word of a command. */
export type Word = string | Uint8Array;

/** Commands that are sent at once, at most: the server decides them while the next are made. */
export const COMMANDS_AT_ONCE = 16;

/** Sends commands. */
export interface Transport {
  /** Sends a command whose first key is `key`. It rejects with the error of the server or the client. */
  send(words: readonly Word[], key: Word): Promise<unknown>;
  /** Sends a command without a key to every primary. */
  everywhere(words: readonly Word[]): Promise<void>;
  /** Closes the connection, if the transport has opened it. */
  close(): void;
}

/** What can send a command: a client or a cluster of ioredis, iovalkey, node-redis or Bun. */
export type RedisClient = Calling | Sending | BunClient;

/** ioredis, iovalkey. */
interface Calling {
  // Each client has its own types of arguments.
  call(command: string, ...args: never[]): Promise<unknown>;
  pipeline?(): unknown;
  readonly isCluster?: boolean;
}

/** A pipeline of ioredis: an error or a reply for each command. */
interface Pipeline {
  call(...words: Words): unknown;
  exec(): Promise<[Error | null, unknown][] | null>;
}

/** node-redis: a client, a pool or a sentinel, or a cluster, which finds the node of a key. */
interface Sending {
  // The same, and clusters take a key first, sentinels whether the command only reads.
  sendCommand(...args: never[]): Promise<unknown>;
}

/** The client of Bun. */
interface BunClient {
  send(command: string, args: string[]): Promise<unknown>;
}

/** The transport over a client. @throws {SettingsError} It is none of the clients above. */
export function transportOf(client: RedisClient): Transport {
  if (typeof client === "object" || typeof client === "function") {
    if (client !== null && "call" in client && typeof client.call === "function") return calling(client);
    if (client !== null && "sendCommand" in client && typeof client.sendCommand === "function") return sending(client);
    if (client !== null && "send" in client && typeof client.send === "function") return bun(client);
  }
  throw new SettingsError(`invalid client of type \`${typeof client}\`: expected one of ioredis, iovalkey, redis (node-redis) or Bun`);
}

function calling(client: Calling): Transport {
  const call = (to: Calling, words: Words): Promise<unknown> => (to.call as (...args: unknown[]) => Promise<unknown>).apply(to, words);
  // It writes each command by itself, but a pipeline at once. The keys of a cluster may be on several nodes.
  const pipelines = typeof client.pipeline === "function" && client.isCluster !== true;
  const batch = new Batch(
    (words) => call(client, words),
    async (commands) => {
      const pipeline = (client.pipeline as () => unknown).call(client) as Pipeline;
      for (const words of commands) pipeline.call(...words);
      return (await pipeline.exec()) ?? [];
    },
  );
  return {
    send: (words) => (pipelines ? batch.send(words.map(buffered)) : call(client, words.map(buffered))),
    async everywhere(words) {
      const { nodes } = client as { nodes?: (role: string) => Calling[] };
      const primaries = typeof nodes === "function" ? nodes.call(client, "master") : [client];
      await Promise.all(primaries.map((it) => call(it, words.map(buffered))));
    },
    close: () => undefined,
  };
}

type Words = (string | Buffer)[];
type SendOne = (words: Words) => Promise<unknown>;
type SendAll = (commands: Words[]) => Promise<[Error | null, unknown][]>;

interface Waiting {
  readonly words: Words;
  resolve(reply: unknown): void;
  reject(error: unknown): void;
}

/** Sends the commands of one turn together, but the first while the next are made. */
class Batch {
  #waiting: Waiting[] = [];
  readonly #one: SendOne;
  readonly #all: SendAll;

  constructor(one: SendOne, all: SendAll) {
    this.#one = one;
    this.#all = all;
  }

  send(words: Words): Promise<unknown> {
    return new Promise((resolve, reject) => {
      this.#waiting.push({ words, resolve, reject });
      if (this.#waiting.length === COMMANDS_AT_ONCE) void this.#flush();
      else if (this.#waiting.length === 1) queueMicrotask(() => void this.#flush());
    });
  }

  async #flush(): Promise<void> {
    const waiting = this.#waiting;
    this.#waiting = [];
    const [first] = waiting;
    if (first === undefined) return;
    try {
      if (waiting.length === 1) {
        first.resolve(await this.#one(first.words));
        return;
      }
      const replies = await this.#all(waiting.map((it) => it.words));
      waiting.forEach(({ resolve, reject }, index) => {
        const [error, reply] = replies[index] ?? [new Error("the client has returned no reply"), undefined];
        if (error === null) resolve(reply);
        else reject(error);
      });
    } catch (error) {
      waiting.forEach((it) => it.reject(error));
    }
  }
}

function sending(client: Sending): Transport {
  const cluster = client as { masters?: { client?: unknown }[]; nodeClient?: (node: unknown) => Promise<Sending> | Sending };
  const sendTo = client.sendCommand as (...args: unknown[]) => Promise<unknown>;
  const isCluster = typeof cluster.nodeClient === "function" && Array.isArray(cluster.masters);
  const isSentinel = "getSentinelNode" in client;
  const sendAlone = (words: readonly Word[]): Promise<unknown> => sendTo.call(client, ...(isSentinel ? [false] : []), words.map(buffered));
  return {
    send: (words, key) => (isCluster ? sendTo.call(client, buffered(key), false, words.map(buffered)) : sendAlone(words)),
    async everywhere(words) {
      if (!isCluster) return void (await sendAlone(words));
      for (const node of cluster.masters ?? []) {
        const primary = (await cluster.nodeClient?.call(client, node)) as Sending;
        await (primary.sendCommand as typeof sendTo).call(primary, words.map(buffered));
      }
    },
    close: () => undefined,
  };
}

function bun(client: BunClient): Transport {
  const send = (words: readonly Word[]): Promise<unknown> => {
    const [command, ...rest] = words;
    // It takes bytes as well, although its types do not say so.
    return client.send(command as string, rest.map(buffered) as string[]);
  };
  return { send, everywhere: async (words) => void (await send(words)), close: () => undefined };
}

function buffered(word: Word): string | Buffer {
  return typeof word === "string" ? word : Buffer.from(word.buffer, word.byteOffset, word.byteLength);
}
