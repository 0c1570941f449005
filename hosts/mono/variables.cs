// The variables of one request: spans of bytes, converted to text on demand.

using System;
using System.Collections.Generic;
using System.Text;
using System.Web;

namespace Forebay {

/// The variables that ASP.NET asks for by itself. The known header fields follow, in the order of
/// HttpWorkerRequest.
enum Name {
    Method, Uri, Query, Protocol, ScriptName, PathInfo, ServerName, ServerPort, ServerAddress, ClientAddress,
    ClientPort, User, Https, Interface, Field,
}

sealed class Variables {
    const int Fields = HttpWorkerRequest.RequestHeaderMaximum;
    const int Known = (int) Name.Field + Fields;
    static readonly Encoding Latin1 = Encoding.GetEncoding(28591);
    static readonly Names Table = new Names(KnownNames());

    byte[] bytes = new byte[4096];
    int length;
    readonly int[] from = new int[Known], size = new int[Known];
    readonly bool[] isThere = new bool[Known];
    // Other variables, four numbers each: start and length of the name, start and length of the
    // value.
    readonly List<int> others = new List<int>();
    // The last text of each variable, because clients often send the same value again.
    readonly byte[][] lastBytes = new byte[Known][];
    readonly string[] lastText = new string[Known];

    public int Length { get { return length; } }

    public void Clear() {
        length = 0;
        Array.Clear(isThere, 0, Known);
        others.Clear();
    }

    public void Append(byte[] from, int offset, int count) {
        if (length + count > bytes.Length) {
            Array.Resize(ref bytes, Math.Max(2 * bytes.Length, length + count));
        }
        Buffer.BlockCopy(from, offset, bytes, length, count);
        length += count;
    }

    /// Finds names and values in the received bytes. Returns false if a length exceeds these bytes.
    public bool Parse() {
        int at = 0;
        while (at < length) {
            int name, value;
            if (!ReadLength(ref at, out name) || !ReadLength(ref at, out value)) return false;
            if (name > length - at || value > length - at - name) return false;
            int known = Table.Find(bytes, at, name);
            if (known >= 0) {
                isThere[known] = value > 0;
                from[known] = at + name;
                size[known] = value;
            } else {
                others.Add(at);
                others.Add(name);
                others.Add(at + name);
                others.Add(value);
            }
            at += name + value;
        }
        return true;
    }

    bool ReadLength(ref int at, out int value) {
        value = 0;
        if (at >= length) return false;
        value = bytes[at++];
        if (value < 128) return true;
        if (length - at < 3) return false;
        value = (value & 127) << 24 | bytes[at] << 16 | bytes[at + 1] << 8 | bytes[at + 2];
        at += 3;
        return true;
    }

    /// The value of a variable; null if it is empty or absent.
    public string this[Name name] { get { return Text((int) name, Latin1); } }

    /// Returns a header field by its number in HttpWorkerRequest.
    public string Field(int index) {
        return index < 0 || index >= Fields ? null : Text((int) Name.Field + index, Latin1);
    }

    /// Returns the value as UTF-8, for variables that the gateway has decoded.
    public string Decoded(Name name) { return Text((int) name, Encoding.UTF8); }

    public byte[] Bytes(Name name) {
        int n = (int) name;
        if (!isThere[n]) return null;
        var copy = new byte[size[n]];
        Buffer.BlockCopy(bytes, from[n], copy, 0, copy.Length);
        return copy;
    }

    string Text(int n, Encoding encoding) {
        if (!isThere[n]) return null;
        if (IsAsLast(n)) return lastText[n];
        lastText[n] = encoding.GetString(bytes, from[n], size[n]);
        // Clients rarely repeat a long value.
        lastBytes[n] = size[n] > 1024 ? null : Bytes((Name) n);
        return lastText[n];
    }

    bool IsAsLast(int n) {
        byte[] last = lastBytes[n];
        if (last == null || last.Length != size[n]) return false;
        int at = from[n];
        for (int i = 0; i < last.Length; i++) if (bytes[at + i] != last[i]) return false;
        return true;
    }

    /// Returns any variable by its name; null if it is absent.
    public string Find(string name) {
        byte[] wanted = Latin1.GetBytes(name);
        int known = Table.Find(wanted, 0, wanted.Length);
        if (known >= 0) return Text(known, Latin1);
        for (int i = 0; i < others.Count; i += 4) {
            if (others[i + 1] == wanted.Length && Names.AreEqual(bytes, others[i], wanted)) {
                return Latin1.GetString(bytes, others[i + 2], others[i + 3]);
            }
        }
        return null;
    }

    /// Returns header fields without a number in HttpWorkerRequest: names as X-Like-This, and
    /// values.
    public string[][] UnknownFields() {
        var fields = new List<string[]>();
        for (int i = 0; i < others.Count; i += 4) {
            string name = Latin1.GetString(bytes, others[i], others[i + 1]);
            // Skip these two, because the gateway also sends them without HTTP_.
            if (!name.StartsWith("HTTP_") || name == "HTTP_CONTENT_LENGTH" || name == "HTTP_CONTENT_TYPE") {
                continue;
            }
            fields.Add(new[] { FieldName(name), Latin1.GetString(bytes, others[i + 2], others[i + 3]) });
        }
        return fields.ToArray();
    }

    static string FieldName(string variable) {
        var name = new StringBuilder(variable.Length);
        bool begins = true;
        for (int i = "HTTP_".Length; i < variable.Length; i++) {
            char c = variable[i];
            name.Append(c == '_' ? '-' : begins ? c : char.ToLowerInvariant(c));
            begins = c == '_';
        }
        return name.ToString();
    }

    static string[] KnownNames() {
        var names = new List<string> {
            "REQUEST_METHOD", "REQUEST_URI", "QUERY_STRING", "SERVER_PROTOCOL", "SCRIPT_NAME", "PATH_INFO",
            "SERVER_NAME", "SERVER_PORT", "SERVER_ADDR", "REMOTE_ADDR", "REMOTE_PORT", "REMOTE_USER", "HTTPS",
            "GATEWAY_INTERFACE",
        };
        for (int index = 0; index < Fields; index++) {
            string name = HttpWorkerRequest.GetKnownRequestHeaderName(index).ToUpperInvariant().Replace('-', '_');
            bool isOfBody = index == HttpWorkerRequest.HeaderContentLength
                || index == HttpWorkerRequest.HeaderContentType;
            names.Add(isOfBody ? name : "HTTP_" + name);
        }
        return names.ToArray();
    }
}

/// A table that finds known names without conversion to text.
sealed class Names {
    const int Slots = 256;
    readonly byte[][] names;
    // One plus the index of a name, at the slot of its hash or a later one; 0 in empty slots.
    readonly byte[] slots = new byte[Slots];

    public Names(string[] known) {
        names = Array.ConvertAll(known, name => Encoding.ASCII.GetBytes(name));
        for (int n = 0; n < names.Length; n++) {
            int slot = Hash(names[n], 0, names[n].Length);
            while (slots[slot] != 0) slot = (slot + 1) % Slots;
            slots[slot] = (byte) (n + 1);
        }
    }

    public int Find(byte[] bytes, int offset, int count) {
        for (int slot = Hash(bytes, offset, count); slots[slot] != 0; slot = (slot + 1) % Slots) {
            byte[] name = names[slots[slot] - 1];
            if (name.Length == count && AreEqual(bytes, offset, name)) return slots[slot] - 1;
        }
        return -1;
    }

    public static bool AreEqual(byte[] bytes, int offset, byte[] name) {
        for (int i = 0; i < name.Length; i++) if (bytes[offset + i] != name[i]) return false;
        return true;
    }

    static int Hash(byte[] bytes, int offset, int count) {
        int hash = count;
        for (int i = 0; i < count; i++) hash = hash * 31 + bytes[offset + i];
        return (hash ^ hash >> 8) & Slots - 1;
    }
}

}
