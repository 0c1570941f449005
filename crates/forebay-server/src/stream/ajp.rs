//! Reads and writes the packets of AJP bodies and replies.

use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use forebay_conf::Level;
use forebay_net::socket::BUFFER;
use forebay_wire::ajp13::{
    AjpError, SendHeaders, append_body_chunk, append_end, append_get_body_chunk, most_chunk,
    most_data,
};

use super::Stream;
use crate::ajp::stream::{AjpStream, COPIED, FILE_PACKETS, PacketFraming, malformed};
use crate::part::Part;

impl Stream {
    /// Reads more of the body. If no data packet is outstanding, first requests one from the web
    /// server. Returns 0 at the end of the body.
    pub(super) async fn read_body(
        &self,
        stream: &AjpStream,
        buffer: &mut Vec<u8>,
        limit: Duration,
    ) -> io::Result<usize> {
        if stream.has_body_end.get() {
            return Ok(0);
        }
        if !stream.is_awaited.get() {
            let _turn = stream.turn.lock().await;
            if stream.has_ended.get() {
                return Err(ErrorKind::BrokenPipe.into());
            }
            let mut packet = Vec::with_capacity(8);
            append_get_body_chunk(&mut packet, most_data(stream.packet_size));
            stream.is_awaited.set(true);
            stream.is_torn.set(true);
            self.write_pieces(&mut [IoSlice::new(&packet)], false, false).await?;
            stream.is_torn.set(false);
        }
        stream.read_packet(buffer, limit).await
    }

    /// Writes a part of a reply as packets. Drops interim replies, which AJP does not have.
    pub(super) async fn write_packets(
        &self,
        stream: &AjpStream,
        part: Part<'_>,
        keeps: bool,
    ) -> io::Result<()> {
        if part.has_head && part.status < 200 {
            return Ok(());
        }
        let _turn = stream.turn.lock().await;
        if stream.has_ended.get() || stream.is_torn.get() {
            return Err(ErrorKind::BrokenPipe.into());
        }
        let mut out = Vec::new();
        if part.has_head
            && let Err(error) = stream.append_head(&mut out, &part)
        {
            return self.refuse_head(stream, error).await;
        }
        let body = [&part.gathered[part.body_at..], part.data];
        let is_copied = body[0].len() + body[1].len() <= COPIED;
        for piece in body.into_iter().filter(|piece| is_copied && !piece.is_empty()) {
            append_body_chunk(&mut out, piece, stream.packet_size);
        }
        let head_len = out.len();
        if part.last.is_some() {
            append_end(&mut out, stream.keep_alive.get());
            stream.has_ended.set(true);
        }
        if is_copied {
            return self.write_pieces(&mut [IoSlice::new(&out)], keeps, false).await;
        }
        let framing = PacketFraming::new(body, stream.packet_size);
        let (head, end) = out.split_at(head_len);
        self.write_pieces(&mut framing.pieces(head, body, end), keeps, false).await
    }

    /// Sends status 502 instead of a reply whose head is too large for a packet. Always returns an
    /// error, so that the caller ends the reply.
    async fn refuse_head(&self, stream: &AjpStream, error: AjpError) -> io::Result<()> {
        self.thread().log_limited(Level::Warn, &format!(
            "502: the head of a reply does not fit into an AJP packet: {error}; raise `ajp_packet_size` and \
             max_packet_size of mod_jk or ProxyIOBufferSize of mod_proxy_ajp"
        ));
        let mut out = Vec::new();
        let head = SendHeaders::new(&mut out, 502, b"Bad Gateway");
        head.finish(stream.packet_size).map_err(malformed)?;
        append_end(&mut out, false);
        stream.keep_alive.set(false);
        stream.has_ended.set(true);
        self.write_pieces(&mut [IoSlice::new(&out)], false, false).await?;
        Err(malformed(error))
    }

    /// Sends a range of a file, a few packets at a time.
    pub(super) async fn send_file_packets(
        &self,
        stream: &AjpStream,
        file: BorrowedFd<'_>,
        mut offset: u64,
        mut length: u64,
        ends: bool,
    ) -> io::Result<()> {
        let most = FILE_PACKETS * most_chunk(stream.packet_size.min(2 * BUFFER));
        let mut buffer = Vec::new();
        while length > 0 {
            buffer.resize(most.min(usize::try_from(length).unwrap_or(most)), 0);
            let read = rustix::io::pread(file, &mut buffer, offset)?;
            if read == 0 {
                // The file became shorter after its length was sent to the client.
                return Err(ErrorKind::UnexpectedEof.into());
            }
            offset += read as u64;
            length -= read as u64;
            let last = (ends && length == 0).then_some(&b""[..]);
            self.write_packets(stream, Part::of_body(&buffer[..read], last), false).await?;
        }
        Ok(())
    }
}
