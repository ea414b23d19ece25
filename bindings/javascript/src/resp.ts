/** A connection to a Sluicegate server, Redis or Valkey: RESP2 over TCP, TLS or a Unix socket, with pipelining. */

import type { Socket } from "node:net";

import { COMMANDS_AT_ONCE, type Transport, type Word } from "./clients.js";
import { SettingsError } from "./errors.js";

const CONNECT_TIMEOUT_MS = 500;
/** Milliseconds before the next attempt to connect. */
const RECONNECT_MS = 50;
/** Milliseconds without a reply after which a connection is closed. That to a host that has disappeared would otherwise stay open for minutes. */
const MAX_SILENCE_MS = 10_000;
/** Bytes of a reply. */
const MAX_REPLY = 1 << 20;
const FORMS = "redis://[[USER]:PASSWORD@]HOST[:PORT][/DB], rediss://HOST or unix:///PATH";

interface Address {
  readonly path?: string;
  readonly host?: string;
  readonly port?: number;
  readonly tls: boolean;
  /** Words of commands that begin each connection. */
  readonly greeting: readonly (readonly string[])[];
}

function addressOf(text: string, defaultPort: number): Address {
  let url: URL;
  try {
    url = new URL(text);
  } catch {
    throw new SettingsError(`invalid URL \`${text}\`: expected ${FORMS}`);
  }
  const { protocol, username, password, hostname, pathname } = url;
  const secret = decodeURIComponent(password);
  const user = decodeURIComponent(username);
  const greeting = secret === "" ? [] : [user === "" ? ["AUTH", secret] : ["AUTH", user, secret]];
  if (protocol === "unix:" && pathname.length > 1) return { path: decodeURIComponent(pathname), tls: false, greeting };
  if ((protocol !== "redis:" && protocol !== "rediss:") || hostname === "") {
    throw new SettingsError(`invalid URL \`${protocol}//...\`: expected ${FORMS}`);
  }
  if (!/^\/?\d*$/.test(pathname)) throw new SettingsError(`invalid database \`${pathname}\`: expected a number, such as /1`);
  if (pathname.length > 1) greeting.push(["SELECT", pathname.slice(1)]);
  const host = hostname.replace(/^\[|\]$/g, "");
  return { host, port: url.port === "" ? defaultPort : Number(url.port), tls: protocol === "rediss:", greeting };
}

/** A transport to the server at `url`, at `defaultPort` unless it says, which connects at the first command, and again after the connection has broken. */
export function connect(url: string, defaultPort: number): Transport {
  return new Connection(addressOf(url, defaultPort));
}

interface Pending {
  resolve(reply: unknown): void;
  reject(error: Error): void;
}

class Connection implements Transport {
  readonly #address: Address;
  #socket: Promise<Socket> | undefined;
  /** The socket that the commands in flight are on. */
  #live: Socket | undefined;
  #pending: Pending[] = [];
  #written: Buffer[] = [];
  #retryAt = 0;
  /** When the last reply came, or the first command was sent after all had replies. */
  #lastReplyAt = 0;
  /** The number of attempts to connect. */
  #attempts = 0;
  #isClosed = false;

  constructor(address: Address) {
    this.#address = address;
  }

  async send(words: readonly Word[]): Promise<unknown> {
    if (this.#isClosed) throw new Error("the limiter is closed");
    const silence = performance.now() - this.#lastReplyAt;
    if (this.#live !== undefined && this.#pending.length > 0 && silence > MAX_SILENCE_MS) {
      this.#lost(this.#live, new Error(`no reply for ${Math.round(silence)} ms`));
    }
    this.#socket ??= this.#connect();
    const socket = await this.#socket;
    return this.#write(socket, words);
  }

  async everywhere(words: readonly Word[]): Promise<void> {
    await this.send(words);
  }

  close(): void {
    this.#isClosed = true;
    this.#socket?.then((socket) => socket.destroy()).catch(() => undefined);
  }

  #write(socket: Socket, words: readonly Word[]): Promise<unknown> {
    return new Promise((resolve, reject) => {
      if (socket !== this.#live) {
        reject(new Error("the connection was closed"));
        return;
      }
      if (this.#pending.length === 0) this.#lastReplyAt = performance.now();
      this.#pending.push({ resolve, reject });
      this.#written.push(encoded(words));
      // Commands of one turn are few writes: the server decides the first while the next are encoded.
      if (this.#written.length === COMMANDS_AT_ONCE) this.#flush(socket);
      else if (this.#written.length === 1) queueMicrotask(() => this.#flush(socket));
    });
  }

  #flush(socket: Socket): void {
    const written = this.#written;
    if (written.length === 0) return;
    this.#written = [];
    socket.write(written.length === 1 ? (written[0] as Buffer) : Buffer.concat(written));
  }

  async #connect(): Promise<Socket> {
    const attempt = (this.#attempts += 1);
    let opened: Socket | undefined;
    try {
      const wait = this.#retryAt - performance.now();
      if (wait > 0) await new Promise((resolve) => setTimeout(resolve, wait));
      const socket = await this.#open();
      opened = socket;
      this.#live = socket;
      const parser = new Parser();
      socket.on("data", (bytes: Buffer) => this.#read(socket, parser, bytes));
      socket.on("close", () => this.#lost(socket, new Error("the connection was closed")));
      // The connection alone keeps no process alive.
      socket.unref();
      await Promise.all(this.#address.greeting.map((words) => this.#write(socket, words)));
      return socket;
    } catch (error) {
      // Its `close` comes later, when the next attempt may have begun.
      if (opened !== undefined) this.#lost(opened, error as Error);
      if (attempt === this.#attempts) this.#socket = undefined;
      this.#retryAt = performance.now() + RECONNECT_MS;
      throw error;
    }
  }

  async #open(): Promise<Socket> {
    const { path, host, port, tls } = this.#address;
    const net = await import("node:net");
    const secure = tls ? await import("node:tls") : undefined;
    return new Promise((resolve, reject) => {
      const to = path === undefined ? { host: host as string, port: port as number } : { path };
      const socket = secure === undefined ? net.connect({ ...to, noDelay: true }) : secure.connect({ ...to, servername: host as string });
      const timer = setTimeout(() => socket.destroy(new Error(`no connection within ${CONNECT_TIMEOUT_MS} ms`)), CONNECT_TIMEOUT_MS);
      socket.once(secure === undefined ? "connect" : "secureConnect", () => {
        clearTimeout(timer);
        socket.off("error", reject);
        socket.on("error", (error: Error) => this.#lost(socket, error));
        resolve(socket);
      });
      socket.once("error", (error) => {
        clearTimeout(timer);
        reject(error);
      });
    });
  }

  #read(socket: Socket, parser: Parser, bytes: Buffer): void {
    this.#lastReplyAt = performance.now();
    try {
      for (const reply of parser.push(bytes)) {
        const pending = this.#pending.shift();
        if (reply instanceof Error) pending?.reject(reply);
        else pending?.resolve(reply);
      }
    } catch (error) {
      socket.destroy(error as Error);
    }
  }

  #lost(socket: Socket, error: Error): void {
    socket.destroy();
    // An earlier socket may end after the next one is open.
    if (socket !== this.#live) return;
    this.#live = undefined;
    this.#socket = undefined;
    const pending = this.#pending;
    this.#pending = [];
    this.#written = [];
    pending.forEach((it) => it.reject(error));
  }
}

/** A command as an array of strings. */
function encoded(words: readonly Word[]): Buffer {
  if (words.every((word) => typeof word === "string")) {
    return Buffer.from(words.reduce((text, word) => `${text}$${Buffer.byteLength(word)}\r\n${word}\r\n`, `*${words.length}\r\n`));
  }
  const parts = words.flatMap((word) => {
    const bytes = Buffer.from(word);
    return [Buffer.from(`$${bytes.length}\r\n`), bytes, Buffer.from("\r\n")];
  });
  return Buffer.concat([Buffer.from(`*${words.length}\r\n`), ...parts]);
}

/** Reads replies from the bytes of a connection. */
class Parser {
  #bytes: Buffer = Buffer.alloc(0);
  #at = 0;

  /** The replies that are complete. @throws The bytes are no reply. */
  push(bytes: Buffer): unknown[] {
    this.#bytes = this.#bytes.length === 0 ? bytes : Buffer.concat([this.#bytes, bytes]);
    this.#at = 0;
    const replies: unknown[] = [];
    let end = 0;
    for (;;) {
      const reply = this.#reply();
      if (reply === INCOMPLETE) break;
      replies.push(reply);
      end = this.#at;
    }
    this.#bytes = this.#bytes.subarray(end);
    if (this.#bytes.length > MAX_REPLY) throw new Error(`a reply has more than ${MAX_REPLY} bytes`);
    return replies;
  }

  #reply(): unknown {
    const kind = this.#bytes[this.#at];
    if (kind === 0x3a || kind === 0x24 || kind === 0x2a) {
      const number = this.#integer();
      if (number === undefined) return INCOMPLETE;
      // : $ *
      return kind === 0x3a ? number : kind === 0x24 ? this.#bulk(number) : this.#array(number);
    }
    const end = this.#bytes.indexOf("\r\n", this.#at);
    if (end < 0) return INCOMPLETE;
    const line = this.#bytes.toString("utf8", this.#at + 1, end);
    this.#at = end + 2;
    if (kind === 0x2b) return line; // +
    if (kind === 0x2d) return new Error(line); // -
    throw new Error("the server does not speak RESP");
  }

  /** The integer behind the first byte of a reply; `undefined` if its line is incomplete. */
  #integer(): number | undefined {
    const bytes = this.#bytes;
    let at = this.#at + 1;
    const isNegative = bytes[at] === 0x2d;
    if (isNegative) at += 1;
    let number = 0;
    for (; at < bytes.length; at += 1) {
      const digit = (bytes[at] as number) - 0x30;
      if (digit >= 0 && digit <= 9) {
        number = number * 10 + digit;
        continue;
      }
      if (bytes[at] !== 0x0d) throw new Error("the server does not speak RESP");
      if (at + 1 >= bytes.length) return undefined;
      this.#at = at + 2;
      return isNegative ? -number : number;
    }
    return undefined;
  }

  #bulk(length: number): unknown {
    if (length < 0) return null;
    if (this.#bytes.length < this.#at + length + 2) return INCOMPLETE;
    const text = this.#bytes.toString("utf8", this.#at, this.#at + length);
    this.#at += length + 2;
    return text;
  }

  #array(length: number): unknown {
    if (length < 0) return null;
    const items: unknown[] = [];
    for (let index = 0; index < length; index += 1) {
      const item = this.#reply();
      if (item === INCOMPLETE) return INCOMPLETE;
      items.push(item);
    }
    return items;
  }
}

const INCOMPLETE = Symbol("incomplete");
