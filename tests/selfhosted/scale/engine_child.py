"""An engine process for tests, with the standard library alone: /health, /metrics in vLLM's words, /stream?for=S, and sleep."""

import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

running: list[int] = []
asleep: list[int] = []
lock = threading.Lock()


class Engine(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.0"

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        if path == "/metrics":
            self._send(
                f"# asleep {len(asleep)}\nvllm:num_requests_running {len(running)}\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0.1\n"
            )
        elif path == "/stream":
            self._stream(float(query.partition("=")[2]))
        elif path == "/is_sleeping":
            self._send(f'{{"is_sleeping": {"true" if asleep else "false"}}}')
        else:
            self._send("ok")

    def do_POST(self) -> None:
        if self.path == "/sleep?level=1" and "no-sleep" not in sys.argv:
            asleep.append(1)
            self._send("ok")
        elif self.path == "/wake_up" and asleep:
            asleep.clear()
            self._send("ok")
        else:
            self.send_error(404)

    def _send(self, text: str) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text.encode())

    def _stream(self, for_s: float) -> None:
        with lock:
            running.append(1)
        try:
            self.send_response(200)
            self.end_headers()
            until = time.monotonic() + for_s
            while time.monotonic() < until:
                self.wfile.write(b"token ")
                self.wfile.flush()
                time.sleep(0.02)
            self.wfile.write(b"end")
        finally:
            with lock:
                running.pop()

    def log_message(self, *args: object) -> None:
        del args


if __name__ == "__main__":
    sys.stdout.write(f"listening {sys.argv}\n")
    sys.stdout.flush()
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Engine).serve_forever()
