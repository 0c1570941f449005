// One request, in the form that System.Web expects.

using System;
using System.IO;
using System.Threading;
using System.Web;

namespace Forebay {

sealed class Request : HttpWorkerRequest {
    /// Milliseconds between checks if a request in System.Web's queue can still be served.
    const int Pause = 50;

    readonly object changes = new object();
    Connection connection;
    readonly Variables variables;
    readonly long length;
    readonly Target target;
    byte[] body;
    bool hasBegun, headEnded, ended, isFinal;
    Thread runner;

    public Request(Connection connection) {
        this.connection = connection;
        variables = connection.Variables;
        long.TryParse(variables.Field(HeaderContentLength), out length);
        target = Target.Of(variables.Decoded(Name.ScriptName) + variables.Decoded(Name.PathInfo));
    }

    /// Returns when the request has been answered.
    public void Run() {
        if (length > int.MaxValue) {
            Answer(413, "Content Too Large");
        } else if (!target.IsServed) {
            Answer(404, "Not Found");
        } else if (Preload()) {
            runner = Thread.CurrentThread;
            Process();
            // For app_offline.htm, System.Web flushes its reply and does not end the request.
            if (isFinal) EndOfRequest();
            AwaitEnd();
        }
    }

    void Process() {
        try {
            HttpRuntime.ProcessRequest(this);
        } catch (ThreadAbortException) {
            Thread.ResetAbort();
        } catch (Exception error) {
            Console.Error.WriteLine(error);
            if (!ended) Answer(500, "Internal Server Error");
        }
    }

    /// Waits for the end of the request. System.Web may queue the request, and drops it if the
    /// application is unloaded. Then this method returns the request to the gateway, unless its
    /// reply has begun.
    void AwaitEnd() {
        lock (changes) {
            while (!ended) {
                Monitor.Wait(changes, Pause);
                if (ended || !Application.IsEnding) continue;
                if (hasBegun) EndOfRequest();
                else End(c => c.Refuse());
            }
        }
    }

    /// Reads a small body in advance. Returns false if the client disconnected during the body.
    bool Preload() {
        if (length > Connection.LargestPreloaded) return true;
        body = new byte[length];
        int at = 0;
        while (at < body.Length) {
            int n = connection.ReadBody(body, at, body.Length - at);
            if (n <= 0) return false;
            at += n;
        }
        // Reads the record that ends the body, so that nothing of the request is left to read.
        return connection.ReadBody(new byte[1], 0, 1) == 0;
    }

    void Answer(int status, string reason) {
        SendStatus(status, reason);
        SendKnownResponseHeader(HeaderContentType, "text/plain");
        byte[] text = System.Text.Encoding.ASCII.GetBytes(status + " " + reason + "\n");
        SendResponseFromMemory(text, text.Length);
        EndOfRequest();
    }

    // The properties of the request.

    public override string GetHttpVerbName() { return variables[Name.Method] ?? "GET"; }
    public override string GetHttpVersion() { return variables[Name.Protocol] ?? "HTTP/1.0"; }
    public override string GetRawUrl() { return variables[Name.Uri] ?? target.Path; }
    public override string GetUriPath() { return target.Path; }
    public override string GetFilePath() { return target.FilePath; }
    public override string GetPathInfo() { return target.PathInfo; }
    public override string GetFilePathTranslated() { return target.File; }
    public override string GetQueryString() { return variables[Name.Query] ?? ""; }
    public override byte[] GetQueryStringRawBytes() { return variables.Bytes(Name.Query); }
    public override string GetAppPath() { return Application.VirtualPath; }
    public override string GetAppPathTranslated() { return Application.Directory; }
    public override string MapPath(string path) { return Target.Map(path); }

    public override string GetLocalAddress() { return variables[Name.ServerAddress] ?? ""; }
    public override int GetLocalPort() { return Number(Name.ServerPort, 80); }
    public override string GetServerName() { return variables[Name.ServerName] ?? ""; }
    public override string GetRemoteAddress() { return variables[Name.ClientAddress] ?? ""; }
    public override int GetRemotePort() { return Number(Name.ClientPort, 0); }
    // Returns the address, because there is no reverse lookup of names.
    public override string GetRemoteName() { return GetRemoteAddress(); }
    public override bool IsSecure() { return variables[Name.Https] == "on"; }
    public override string GetProtocol() { return IsSecure() ? "https" : "http"; }

    int Number(Name name, int otherwise) {
        int number;
        return int.TryParse(variables[name], out number) ? number : otherwise;
    }

    public override string GetKnownRequestHeader(int index) { return variables.Field(index); }

    public override string GetUnknownRequestHeader(string name) {
        return variables.Find("HTTP_" + name.ToUpperInvariant().Replace('-', '_'));
    }

    public override string[][] GetUnknownRequestHeaders() { return variables.UnknownFields(); }

    /// GATEWAY_INTERFACE makes ASP.NET leave the framing of replies to the gateway.
    public override string GetServerVariable(string name) {
        switch (name) {
        case "GATEWAY_INTERFACE": return "CGI/1.1";
        case "AUTH_USER": case "LOGON_USER": return variables[Name.User] ?? "";
        case "SERVER_SOFTWARE": return "Forebay";
        default: return variables.Find(name) ?? "";
        }
    }

    public override byte[] GetPreloadedEntityBody() { return body; }
    public override int GetPreloadedEntityBodyLength() { return body == null ? 0 : body.Length; }
    public override int GetTotalEntityBodyLength() { return (int) length; }
    public override bool IsEntireEntityBodyIsPreloaded() { return body != null; }

    public override int GetPreloadedEntityBody(byte[] buffer, int offset) {
        if (body == null) return 0;
        Buffer.BlockCopy(body, 0, buffer, offset, body.Length);
        return body.Length;
    }

    public override int ReadEntityBody(byte[] buffer, int size) { return ReadEntityBody(buffer, 0, size); }

    public override int ReadEntityBody(byte[] buffer, int offset, int size) {
        if (body != null || connection == null) return 0;
        return Math.Max(0, connection.ReadBody(buffer, offset, size));
    }

    public override bool IsClientConnected() {
        lock (changes) return !ended && connection.IsOpen;
    }

    // The reply. Later output of the application's other threads is dropped.

    public override void SendStatus(int code, string reason) {
        Head("Status: " + code + " " + reason);
    }

    public override void SendKnownResponseHeader(int index, string value) {
        SendUnknownResponseHeader(GetKnownResponseHeaderName(index), value);
    }

    public override void SendUnknownResponseHeader(string name, string value) {
        Head(name + ": " + value);
    }

    void Head(string line) {
        lock (changes) {
            if (ended || headEnded) return;
            hasBegun = true;
            connection.WriteText(line);
            connection.WriteLineEnd();
        }
    }

    public override bool HeadersSent() { return headEnded; }

    public override void SendResponseFromMemory(byte[] data, int count) {
        if (count > 0) Body(c => c.Write(data, 0, count));
    }

    public override void SendResponseFromMemory(IntPtr data, int count) {
        if (count > 0) Body(c => c.Write(data, count));
    }

    public override void SendResponseFromFile(string name, long offset, long count) {
        using (var file = File.OpenRead(name)) SendFile(file, offset, count);
    }

    public override void SendResponseFromFile(IntPtr handle, long offset, long count) {
        var owned = new Microsoft.Win32.SafeHandles.SafeFileHandle(handle, false);
        using (var file = new FileStream(owned, FileAccess.Read)) SendFile(file, offset, count);
    }

    void SendFile(Stream file, long offset, long count) {
        file.Seek(offset, SeekOrigin.Begin);
        if (count > 0) Body(c => c.Write(file, count));
    }

    void Body(Action<Connection> write) {
        lock (changes) {
            if (ended) return;
            EndHead();
            write(connection);
        }
    }

    void EndHead() {
        hasBegun = true;
        if (headEnded) return;
        headEnded = true;
        connection.WriteLineEnd();
    }

    /// Sends the pending output. The final flush does nothing, because the end of the request sends
    /// all output.
    public override void FlushResponse(bool isFinal) {
        if (!isFinal) Body(c => c.Flush());
        // If another thread calls this, the application may still use the request.
        else if (Thread.CurrentThread == runner) this.isFinal = true;
    }

    public override void EndOfRequest() {
        lock (changes) {
            if (ended) return;
            EndHead();
            End(c => c.Finish());
        }
    }

    void End(Action<Connection> end) {
        ended = true;
        end(connection);
        Monitor.PulseAll(changes);
    }

    /// Ends only the request, because the connection belongs to the gateway, not to a client.
    public override void CloseConnection() { EndOfRequest(); }

    public override void SetEndOfSendNotification(EndOfSendNotification callback, object extra) { }
}

/// The file and the path information of a request path.
sealed class Target {
    static readonly string[] Defaults =
        { "index.aspx", "Default.aspx", "default.aspx", "index.html", "index.htm" };
    /// Private directories of the application.
    static readonly string[] Hidden = { "bin", "App_Code", "App_Data", "App_Browsers", "App_GlobalResources",
        "App_LocalResources", "App_WebReferences" };

    [ThreadStatic] static Target last;

    public readonly string Path;
    public string FilePath { get; private set; }
    public string PathInfo { get; private set; }
    public string File { get; private set; }
    public bool IsServed { get; private set; }
    /// True if the result does not depend on existing files, so that it stays valid.
    bool isLasting = true;

    public static Target Of(string path) {
        if (last != null && last.Path == path) return last;
        var target = new Target(path);
        last = target.isLasting ? target : null;
        return target;
    }

    Target(string path) {
        Path = path;
        FilePath = path;
        PathInfo = "";
        IsServed = IsInside(path) && !IsHidden(path);
        if (!IsServed) return;
        if (path.EndsWith("/")) FindDefault();
        else Split();
        File = Map(FilePath);
    }

    static bool IsInside(string path) {
        string root = Application.VirtualPath;
        return path.StartsWith("/") && path.IndexOf('\0') < 0
            && (root == "/" || path == root || path.StartsWith(root + "/"));
    }

    static bool IsHidden(string path) {
        foreach (string name in Hidden) {
            int at = path.IndexOf("/" + name, StringComparison.OrdinalIgnoreCase);
            int end = at + 1 + name.Length;
            if (at >= 0 && (end == path.Length || path[end] == '/')) return true;
        }
        return false;
    }

    void FindDefault() {
        isLasting = false;
        string directory = Map(Path);
        foreach (string name in Defaults) {
            if (!System.IO.File.Exists(directory + "/" + name)) continue;
            FilePath = Path + name;
            return;
        }
    }

    /// Splits the path after its first segment that is a file, such as a page. The rest is path
    /// information for that page.
    void Split() {
        for (int at = Path.IndexOf('/', 1); at > 0; at = Path.IndexOf('/', at + 1)) {
            int name = Path.LastIndexOf('/', at - 1) + 1;
            if (Path.IndexOf('.', name, at - name) < 0) continue;
            isLasting = false;
            string head = Path.Substring(0, at);
            if (!System.IO.File.Exists(Map(head))) continue;
            FilePath = head;
            PathInfo = Path.Substring(at);
            return;
        }
    }

    /// Returns the file of a virtual path.
    public static string Map(string path) {
        string root = Application.VirtualPath;
        if (string.IsNullOrEmpty(path) || path == root) return Application.Directory;
        if (path[0] == '~') path = path.Substring(1);
        else if (root != "/" && path.StartsWith(root + "/")) path = path.Substring(root.Length);
        return System.IO.Path.Combine(Application.Directory, path.TrimStart('/'));
    }
}

}
