// One connection of the gateway: FastCGI records in, FastCGI records out, one request at a time.
//
// https://fastcgi-archives.github.io/FastCGI_Specification.html

using System;
using System.IO;
using System.Text;

namespace Forebay {

sealed class Connection {
    const int BeginRequest = 1, AbortRequest = 2, EndRequest = 3, Params = 4, Stdin = 5, Stdout = 6;
    const int Responder = 1, KeepConnection = 1;
    const int Complete = 0, Overloaded = 2, UnknownRole = 3;
    const int HeaderSize = 8;
    /// The largest content of a record in bytes, a multiple of 8.
    const int LargestRecord = 65528;
    /// Size of the empty output record and the end record of a request.
    const int TailSize = HeaderSize + 2 * HeaderSize;
    /// Bodies up to this size are read before the application runs.
    public const int LargestPreloaded = 64 * 1024;
    /// The largest total size of all variables. The gateway's limit on heads is lower.
    const int MostVariables = 4 * 1024 * 1024;

    readonly byte[] inbox = new byte[64 * 1024];
    readonly byte[] outbox = new byte[HeaderSize + LargestRecord + TailSize];
    readonly Variables variables = new Variables();

    int fd;
    // Bounds of the unread bytes in the inbox.
    int start, end;
    // State of the current request.
    int id;
    bool keep;
    // Unread bytes of the current body record, and its padding. bodyEnded is true after the last
    // record.
    int bodyLeft, padding;
    bool bodyEnded;
    // Bytes of content in the current output record. Space for the header precedes these bytes.
    int filled;
    bool broken;

    /// The variables of the current request.
    public Variables Variables { get { return variables; } }

    /// Takes connections forever, and serves each until it is closed.
    public static void TakeAll(int listener) {
        var connection = new Connection();
        while (true) {
            connection.fd = Native.Accept(listener);
            try {
                connection.Serve();
            } catch (Exception error) {
                Console.Error.WriteLine(error);
            }
            Native.Close(connection.fd);
        }
    }

    void Serve() {
        start = end = 0;
        broken = false;
        do {
            if (!ReadRequest()) return;
            Application.BeginRequest();
            try {
                if (Application.IsEnding) {
                    WriteEnd(Overloaded);
                } else {
                    new Request(this).Run();
                }
            } finally {
                Application.EndRequest();
            }
            if (!SkipBody()) return;
        } while (keep && !broken);
    }

    /// Reads all variables of a request. Returns false if there is no request, or if it violates
    /// the protocol.
    bool ReadRequest() {
        int role = 0;
        id = 0;
        variables.Clear();
        bodyLeft = padding = filled = 0;
        bodyEnded = false;
        while (true) {
            if (!Fill(HeaderSize)) return false;
            int type = inbox[start + 1], content = Number(start + 4), skip = inbox[start + 6];
            int of = Number(start + 2);
            start += HeaderSize;
            if (type == BeginRequest && id == 0 && of != 0 && content == 8) {
                if (!Fill(content)) return false;
                id = of;
                role = Number(start);
                keep = (inbox[start + 2] & KeepConnection) != 0;
                start += content;
            } else if (type == Params && id != 0 && of == id) {
                if (content == 0) {
                    if (!Skip(skip)) return false;
                    break;
                }
                if (!ReadVariables(content)) return false;
            } else {
                return false;
            }
            if (!Skip(skip)) return false;
        }
        if (role == Responder && variables.Parse()) return true;
        if (role != Responder) WriteEnd(UnknownRole);
        return false;
    }

    bool ReadVariables(int count) {
        if (variables.Length + count > MostVariables) return false;
        while (count > 0) {
            if (start == end && !Fill(1)) return false;
            int n = Math.Min(count, end - start);
            variables.Append(inbox, start, n);
            start += n;
            count -= n;
        }
        return true;
    }

    /// Reads some of the body. Returns 0 at its end, and -1 if the connection broke before the end.
    public int ReadBody(byte[] buffer, int offset, int count) {
        if (count == 0) return 0;
        while (bodyLeft == 0) {
            if (bodyEnded) return 0;
            if (!NextOfBody()) return -1;
        }
        count = Math.Min(count, bodyLeft);
        if (start == end && count >= inbox.Length / 2) {
            count = Native.Receive(fd, buffer, offset, count);
            if (count == 0) return Lost();
        } else {
            if (start == end && !Fill(1)) return Lost();
            count = Math.Min(count, end - start);
            Buffer.BlockCopy(inbox, start, buffer, offset, count);
            start += count;
        }
        bodyLeft -= count;
        return count;
    }

    int Lost() {
        broken = true;
        return -1;
    }

    bool NextOfBody() {
        if (!Skip(padding) || !Fill(HeaderSize) || inbox[start + 1] != Stdin || Number(start + 2) != id) {
            broken = true;
            return false;
        }
        bodyLeft = Number(start + 4);
        padding = inbox[start + 6];
        start += HeaderSize;
        if (bodyLeft == 0) {
            bodyEnded = true;
            if (!Skip(padding)) broken = true;
            padding = 0;
        }
        return true;
    }

    /// Skips the part of the body that the application did not read.
    bool SkipBody() {
        while (!broken && !(bodyEnded && bodyLeft == 0)) {
            if (bodyLeft == 0) {
                NextOfBody();
            } else if (Skip(bodyLeft)) {
                bodyLeft = 0;
            } else {
                broken = true;
            }
        }
        return !broken;
    }

    /// Reads until the inbox holds `count` bytes.
    bool Fill(int count) {
        if (end - start >= count) return true;
        if (start == end) {
            start = end = 0;
        } else if (inbox.Length - start < count) {
            Buffer.BlockCopy(inbox, start, inbox, 0, end - start);
            end -= start;
            start = 0;
        }
        while (end - start < count) {
            int n = Native.Receive(fd, inbox, end, inbox.Length - end);
            if (n == 0) return false;
            end += n;
        }
        return true;
    }

    bool Skip(int count) {
        while (count > 0) {
            if (start == end && !Fill(1)) return false;
            int n = Math.Min(count, end - start);
            start += n;
            count -= n;
        }
        return true;
    }

    int Number(int at) { return inbox[at] << 8 | inbox[at + 1]; }

    /// Writes text of the reply's head as one byte per character, without characters that could end
    /// a line.
    public void WriteText(string text) {
        foreach (char c in text) {
            if (c == '\r' || c == '\n' || c == '\0') continue;
            if (c < 256) WriteByte((byte) c);
            else Write(Encoding.UTF8.GetBytes(c.ToString()), 0, -1);
        }
    }

    /// Ends a line of the head.
    public void WriteLineEnd() {
        WriteByte((byte) '\r');
        WriteByte((byte) '\n');
    }

    void WriteByte(byte b) {
        if (filled == LargestRecord) Flush();
        outbox[HeaderSize + filled++] = b;
    }

    /// Writes bytes; a count of -1 means all of them.
    public void Write(byte[] bytes, int offset, int count) {
        if (count < 0) count = bytes.Length - offset;
        while (count > 0) {
            int n = Room(count);
            Buffer.BlockCopy(bytes, offset, outbox, HeaderSize + filled, n);
            filled += n;
            offset += n;
            count -= n;
        }
    }

    /// Writes bytes from unmanaged memory.
    public void Write(IntPtr bytes, int count) {
        while (count > 0) {
            int n = Room(count);
            System.Runtime.InteropServices.Marshal.Copy(bytes, outbox, HeaderSize + filled, n);
            filled += n;
            bytes += n;
            count -= n;
        }
    }

    /// Writes up to `count` bytes from the current position of a file. Reads directly into the
    /// record: a 64 KB buffer per file would be a large object, which is expensive to collect.
    public void Write(Stream file, long count) {
        while (count > 0 && !broken) {
            int room = Room(count);
            int n = file.Read(outbox, HeaderSize + filled, room);
            if (n == 0) return;
            filled += n;
            count -= n;
        }
    }

    /// Returns the number of bytes that fit into the record, up to `count`. Sends a full record
    /// first.
    int Room(long count) {
        if (filled == LargestRecord) Flush();
        return (int) Math.Min(count, LargestRecord - filled);
    }

    /// Sends the current record.
    public void Flush() {
        if (filled == 0) return;
        int length = CloseRecord();
        if (!broken && !Native.Send(fd, outbox, length)) broken = true;
        filled = 0;
    }

    /// Ends the request, and sends all pending output in one call.
    public void Finish() { WriteEnd(Complete); }

    /// Refuses a request that has not begun, so that the gateway may try another process.
    public void Refuse() {
        filled = 0;
        WriteEnd(Overloaded);
    }

    void WriteEnd(byte status) {
        int at = CloseRecord();
        if (status == Complete) at = WriteHeader(at, Stdout, 0);
        at = WriteHeader(at, EndRequest, 8);
        Array.Clear(outbox, at, 8);
        outbox[at + 4] = status;
        at += 8;
        if (!broken && !Native.Send(fd, outbox, at)) broken = true;
        filled = 0;
    }

    /// Writes the header of the current record. Returns the start of the next record.
    int CloseRecord() {
        if (filled == 0) return 0;
        WriteHeader(0, Stdout, filled);
        return HeaderSize + filled;
    }

    int WriteHeader(int at, int type, int content) {
        outbox[at] = 1;
        outbox[at + 1] = (byte) type;
        outbox[at + 2] = (byte) (id >> 8);
        outbox[at + 3] = (byte) id;
        outbox[at + 4] = (byte) (content >> 8);
        outbox[at + 5] = (byte) content;
        outbox[at + 6] = outbox[at + 7] = 0;
        return at + HeaderSize;
    }

    /// True if the client still waits. The gateway closes the connection if its client disconnects.
    public bool IsOpen { get { return !broken && (start < end || Native.IsOpen(fd)); } }
}

}
