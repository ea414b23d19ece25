/** Clients of Redis and Valkey, as applications have them, behind one function that sends a command. */

import { SettingsError } from "./errors.js";

/** A word of a command. */
export type Word = string | Uint8Array;

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
}

/** node-redis: a client, or a cluster, which finds the node of a key. */
interface Sending {
  // The same, and clusters take a key first.
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
  const send = (to: Calling, words: readonly Word[]): Promise<unknown> => {
    const [command, ...rest] = words;
    return (to.call as (...args: unknown[]) => Promise<unknown>).call(to, command, ...rest.map(buffered));
  };
  return {
    send: (words) => send(client, words),
    async everywhere(words) {
      const { nodes } = client as { nodes?: (role: string) => Calling[] };
      const primaries = typeof nodes === "function" ? nodes.call(client, "master") : [client];
      await Promise.all(primaries.map((it) => send(it, words)));
    },
    close: () => undefined,
  };
}

function sending(client: Sending): Transport {
  const cluster = client as { masters?: { client?: unknown }[]; nodeClient?: (node: unknown) => Promise<Sending> | Sending };
  const sendTo = client.sendCommand as (...args: unknown[]) => Promise<unknown>;
  const isCluster = typeof cluster.nodeClient === "function" && Array.isArray(cluster.masters);
  return {
    send: (words, key) => (isCluster ? sendTo.call(client, buffered(key), false, words.map(buffered)) : sendTo.call(client, words.map(buffered))),
    async everywhere(words) {
      if (!isCluster) return void (await sendTo.call(client, words.map(buffered)));
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
