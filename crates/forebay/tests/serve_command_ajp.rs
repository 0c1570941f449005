//! `forebay serve` with a program that speaks AJP (`kind = "command"`, `speaks = "ajp"`).

mod support;

use forebay_testkit::folder::Folder;
use support::{Forebay, chunked, pattern, serve};

/// Answers each request with its secret, the length of its body and the body. If the length is
/// known, the first packet of the body comes without a request.
const SERVER: &str = r#"
import socket, socketserver, struct, sys

class Handler(socketserver.StreamRequestHandler):
    def packet(self):
        header = self.rfile.read(4)
        if len(header) < 4:
            return None
        return self.rfile.read(struct.unpack('>H', header[2:])[0])

    def send(self, payload):
        self.wfile.write(b'AB' + struct.pack('>H', len(payload)) + payload)

    def text(self, data, at):
        length = struct.unpack_from('>H', data, at)[0]
        if length >> 8 == 0xa0:
            return length, at + 2
        return data[at + 2:at + 2 + length].decode(), at + 3 + length

    def answer(self, data):
        at = 2
        for _ in range(5):
            _, at = self.text(data, at)
        at += 3
        count, at, length, chunked = struct.unpack_from('>H', data, at)[0], at + 2, 0, False
        for _ in range(count):
            name, at = self.text(data, at)
            value, at = self.text(data, at)
            if name == 0xa008:
                length = int(value)
            chunked |= name == 'Transfer-Encoding'
        secret = 'none'
        while data[at] != 0xff:
            code, at = data[at], at + 1
            if code == 0x0a:
                _, at = self.text(data, at)
            value, at = self.text(data, at)
            if code == 0x0c:
                secret = value
        body, piece = b'', b''
        if length:
            body = self.packet()[2:]
        while chunked or len(body) < length:
            self.send(b'\x06' + struct.pack('>H', 8186))
            piece = self.packet()[2:]
            if not piece:
                break
            body += piece
        body = secret.encode() + b' ' + str(len(body)).encode() + b' ' + body
        self.send(b'\x04\0\xc8\0\x02OK\0\0\0')
        for start in range(0, len(body), 8000):
            chunk = body[start:start + 8000]
            self.send(b'\x03' + struct.pack('>H', len(chunk)) + chunk + b'\0')
        self.send(b'\x05\x01')

    def handle(self):
        while True:
            data = self.packet()
            if not data:
                return
            self.answer(data)

class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True

Server(('127.0.0.1', int(sys.argv[1])), Handler).serve_forever()
"#;

fn server(keys: &str) -> Forebay {
    let folder = Folder::new();
    folder.write("server.py", SERVER);
    let configuration = format!(
        "[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\napp = \"own\"\n\
         [app.own]\nkind = \"command\"\nspeaks = \"ajp\"\n\
         run = [\"python3\", \"{{dir}}/server.py\", \"{{port}}\"]\n{keys}\n"
    );
    serve(folder, &configuration)
}

#[test]
fn a_program_is_asked_over_ajp() {
    for (keys, secret) in [("", "none"), ("secret = \"s3cret\"", "s3cret")] {
        let forebay = server(keys);
        let mut client = forebay.connect();
        assert_eq!(client.get("/").text(), format!("{secret} 0 "));
        for length in [1, 8186, 8187, 100_000] {
            let body = pattern(length);
            let expected = [format!("{secret} {length} ").as_bytes(), &body].concat();
            client.send(format!("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n"));
            client.send(&body);
            assert!(client.reply().body == expected, "{length}");
            client.send("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n");
            client.send(chunked(&[&body]));
            assert!(client.reply().body == expected, "{length} in chunks");
        }
        let (exit, _) = forebay.stop();
        assert!(exit.status.success() && exit.survivors.is_empty(), "{}", exit.output);
    }
}
