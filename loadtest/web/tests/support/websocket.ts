// The server's side of a WebSocket: text frames out, control frames in. Enough to be a feed, and to break like one.

import { createHash } from 'node:crypto';
import type { IncomingMessage } from 'node:http';
import type { Duplex } from 'node:stream';

const MAGIC = '258EAFA5-E914-47DA-95CA-C5AB0DC85B11';
const OPCODE = { text: 0x1, close: 0x8, ping: 0x9, pong: 0xa } as const;

export class ServerSocket {
  private waiting = Buffer.alloc(0);

  constructor(private readonly stream: Duplex) {
    stream.on('data', (chunk: Buffer) => this.read(chunk));
    stream.on('error', () => stream.destroy());
  }

  /** Shakes hands on a request to upgrade. */
  static accept(request: IncomingMessage, stream: Duplex): ServerSocket {
    const key = request.headers['sec-websocket-key'] ?? '';
    const answer = createHash('sha1')
      .update(key + MAGIC)
      .digest('base64');
    stream.write(
      'HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n' +
        `Sec-WebSocket-Accept: ${answer}\r\n\r\n`,
    );
    return new ServerSocket(stream);
  }

  onClose(run: () => void): void {
    this.stream.once('close', run);
  }

  /** Resolves when there is room for more. */
  async say(text: string): Promise<void> {
    if (this.stream.destroyed) return;
    if (this.stream.write(frame(OPCODE.text, Buffer.from(text)))) return;
    await new Promise<void>((resolve) => {
      const go = () => {
        this.stream.off('drain', go);
        this.stream.off('close', go);
        resolve();
      };
      this.stream.on('drain', go);
      this.stream.on('close', go);
    });
  }

  close(code: number): void {
    const payload = Buffer.alloc(2);
    payload.writeUInt16BE(code);
    this.stream.end(frame(OPCODE.close, payload));
  }

  /** As a cable that is pulled: no goodbye. */
  destroy(): void {
    this.stream.destroy();
  }

  private read(chunk: Buffer): void {
    this.waiting = Buffer.concat([this.waiting, chunk]);
    for (;;) {
      const [first = 0, second = 0] = this.waiting;
      const length = second & 0x7f;
      // A page says nothing but control frames, which are short; all of them are masked.
      const whole = 6 + length;
      if (this.waiting.length < 2 || this.waiting.length < whole) return;
      const mask = this.waiting.subarray(2, 6);
      const payload = this.waiting.subarray(6, whole).map((byte, at) => byte ^ (mask[at % 4] ?? 0));
      this.waiting = this.waiting.subarray(whole);
      if ((first & 0xf) === OPCODE.close) this.stream.end(frame(OPCODE.close, payload));
      if ((first & 0xf) === OPCODE.ping) this.stream.write(frame(OPCODE.pong, payload));
    }
  }
}

function frame(opcode: number, payload: Uint8Array): Buffer {
  const { length } = payload;
  let head: Buffer;
  if (length < 126) {
    head = Buffer.from([0x80 | opcode, length]);
  } else if (length < 65_536) {
    head = Buffer.alloc(4);
    head.set([0x80 | opcode, 126]);
    head.writeUInt16BE(length, 2);
  } else {
    head = Buffer.alloc(10);
    head.set([0x80 | opcode, 127]);
    head.writeBigUInt64BE(BigInt(length), 2);
  }
  return Buffer.concat([head, payload]);
}
