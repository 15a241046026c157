"""A relay between a gateway and an engine. It passes bodies on, and keeps every whole answer to a request to generate
or to chat, unless a test drops the answer. A test compares these answers with the rows that the gateway makes. With
`tames`, the relay also limits the whitespace that a request allows.

The relay opens one connection to the engine for each request. When the gateway closes its connection, the relay closes
the connection to the engine, as a client of the engine would. A test can hold an answer back, or drop it.
"""

import asyncio
import dataclasses
import json
import threading

GENERATE = "/inference/v1/generate"
CHAT = "/v1/chat/completions"


@dataclasses.dataclass
class Exchange:
    """A request whose whole answer came from the engine."""

    path: str
    request: dict
    status: int
    answer: dict
    # Whether the gateway was still there to read the answer.
    delivered: bool

    def prompt_ids(self):
        return self.request["token_ids"]

    def choice(self):
        (choice,) = self.answer["choices"]
        return choice


class Relay:
    def __init__(self, upstream_host, upstream_port, tames=False):
        self.upstream = (upstream_host, upstream_port)
        # Whether whitespace within calls of tools is limited. Without a limit, a model with random weights does not end
        # such a call.
        self.tames = tames
        self.exchanges = []
        # The number of requests to generate that have begun, whether or not an answer came.
        self.begun = 0
        self.changed = threading.Condition()
        # Called with a path when the answer of the engine is there, before a byte of it is passed on. If the call
        # returns False, the answer is dropped and the connection to the gateway is closed.
        self.before_answer = None
        self.loop = asyncio.new_event_loop()
        self.ready = threading.Event()
        self.thread = threading.Thread(target=self.run, name="relay", daemon=True)
        self.thread.start()
        self.ready.wait()

    def run(self):
        asyncio.set_event_loop(self.loop)
        self.server = self.loop.run_until_complete(asyncio.start_server(self.converse, "127.0.0.1", 0))
        self.port = self.server.sockets[0].getsockname()[1]
        self.ready.set()
        self.loop.run_forever()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def generated(self, trajectory=""):
        """The engine's whole answers that have tokens, in order. The id of a request begins with the name of its
        trajectory.
        """
        with self.changed:
            mine = [exchange for exchange in self.exchanges if exchange.path == GENERATE and exchange.status == 200]
        mine = [exchange for exchange in mine if exchange.request["request_id"].startswith(trajectory)]
        return [exchange for exchange in mine if exchange.choice()["token_ids"]]

    def await_begun(self, count, timeout=60):
        """Waits until `count` requests to generate have begun in all."""
        with self.changed:
            there = self.changed.wait_for(lambda: self.begun >= count, timeout)
        assert there, f"only {self.begun} of {count} requests to generate have begun"

    def close(self):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()

    async def converse(self, reader, writer):
        """Serves the requests of one connection, one after the other."""
        try:
            while await self.serve(reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

    async def serve(self, reader, writer):
        head = await read_head(reader)
        if not head:
            return False
        path = head.split(b" ", 2)[1].decode().split("?")[0]
        body = await reader.readexactly(length_of(head))
        if self.tames and path == GENERATE:
            body = body.replace(rb'\"max_whitespace_cnt\": null', rb'\"max_whitespace_cnt\": 1')
            head = with_length(head, len(body))
        if path == GENERATE:
            with self.changed:
                self.begun += 1
                self.changed.notify_all()
        ask = asyncio.ensure_future(self.ask(head, body))
        # The gateway sends nothing while it waits for an answer, so a byte or the end means that it has gone.
        gone = asyncio.ensure_future(reader.read(1))
        await asyncio.wait({ask, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not ask.done():
            ask.cancel()
            return False
        answer_head, answer = ask.result()
        if self.before_answer and not await asyncio.to_thread(self.before_answer, path):
            gone.cancel()
            return False
        delivered = not gone.done()
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        self.note(path, body, answer_head, answer, delivered)
        if not delivered:
            return False
        writer.write(with_length(answer_head, len(answer)) + answer)
        await writer.drain()
        return True

    async def ask(self, head, body):
        """The head and the body of the engine's answer."""
        reader, writer = await asyncio.open_connection(*self.upstream)
        try:
            writer.write(with_close(head) + body)
            await writer.drain()
            answer_head = await read_head(reader)
            if not answer_head:
                raise ConnectionResetError
            if b"transfer-encoding: chunked" in answer_head.lower():
                return answer_head, await read_chunks(reader)
            return answer_head, await reader.readexactly(length_of(answer_head))
        finally:
            writer.close()

    def note(self, path, body, answer_head, answer, delivered):
        if path not in (GENERATE, CHAT):
            return
        status = int(answer_head.split(b" ", 2)[1])
        known = Exchange(path, json.loads(body), status, json.loads(answer), delivered)
        with self.changed:
            self.exchanges.append(known)
            self.changed.notify_all()


async def read_head(reader):
    """The head of a message up to its empty line; empty at the end of the connection."""
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as ended:
        if ended.partial:
            raise
        return b""


def fields(head):
    lines = head.decode("latin-1").split("\r\n")[1:]
    return [line.split(":", 1) for line in lines if ":" in line]


def length_of(head):
    lengths = [int(value) for name, value in fields(head) if name.lower() == "content-length"]
    return lengths[0] if lengths else 0


def without(head, *names):
    first, *rest = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    kept = [line for line in rest if line.split(b":", 1)[0].lower().decode() not in names]
    return b"\r\n".join([first, *kept])


def with_close(head):
    return without(head, "connection") + b"\r\nconnection: close\r\n\r\n"


def with_length(head, length):
    kept = without(head, "connection", "transfer-encoding", "content-length")
    return kept + f"\r\ncontent-length: {length}\r\n\r\n".encode()


async def read_chunks(reader):
    body = b""
    while True:
        size = int((await reader.readuntil(b"\r\n")).split(b";")[0], 16)
        chunk = await reader.readexactly(size + 2)
        if size == 0:
            return body
        body += chunk[:-2]
