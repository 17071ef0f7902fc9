"""One client of the fit of server.py: python client.py KEY_FILE PORT NUMBER ROWS_FILE."""

import sys
from contextlib import suppress
from multiprocessing.connection import Client
from pathlib import Path

import numpy as np
from server import CONFIG

from skdp.federated import AggregationClient, PowerMethodClient

rows = PowerMethodClient(np.load(sys.argv[4]), CONFIG)  # they stay here
with Client(("localhost", int(sys.argv[2])), authkey=Path(sys.argv[1]).read_bytes()) as server:
    server.send_bytes(int(sys.argv[3]).to_bytes(4))
    client = AggregationClient(server.recv_bytes(64), int(sys.argv[3]), CONFIG, rows.respond)
    with suppress(EOFError):  # the server has what it wanted, and hangs up
        while message := server.recv_bytes():
            server.send_bytes(client.handle(message))
print(rows.close())
