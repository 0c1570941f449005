// Runs one ASP.NET application, and answers its requests over FastCGI on a Unix socket.
//
//     forebay-mono.exe SOCKET DIRECTORY VIRTUAL-PATH THREADS
//
// The sockets and the parser live inside the application's domain: nothing crosses the border between
// two domains for a request, and no object of a request is remoted. Each thread takes one connection,
// and answers one request after the other on it; the gateway has no more connections than threads.
//
// The file is compiled together with those in mono/ by `mcs -unsafe -r:System.Web -r:Mono.Posix`.

using System;
using System.IO;
using System.Reflection;
using System.Runtime.InteropServices;
using System.Text;
using System.Threading;
using System.Web;
using System.Web.Hosting;

namespace Forebay {

static class Program {
    static int Main(string[] arguments) {
        if (arguments.Length != 4) {
            Console.Error.WriteLine("usage: forebay-mono.exe SOCKET DIRECTORY VIRTUAL-PATH THREADS");
            return 2;
        }
        string socket = arguments[0], directory = arguments[1], virtualPath = arguments[2];
        int threads = int.Parse(arguments[3]);
        // What asynchronous handlers run on; mono adds threads slowly above the minimum.
        ThreadPool.SetMinThreads(threads, 4);
        // Before the application's domain: it would be interrupted by a signal that ends the process.
        var termination = new Mono.Unix.UnixSignal(Mono.Unix.Native.Signum.SIGTERM);
        Host host;
        try {
            host = (Host) ApplicationHost.CreateApplicationHost(typeof(Host), virtualPath, directory);
            host.Start(socket, directory, virtualPath, threads);
        } catch (Exception error) {
            Console.Error.WriteLine("the application does not start: {0}", error);
            return 1;
        }
        termination.WaitOne();
        try {
            host.Stop();
        } catch (AppDomainUnloadedException) {
            // It ends by itself, once its requests are done.
            Thread.Sleep(Host.StopTime);
        }
        Native._exit(0);
        return 0;
    }
}

/// What the default domain holds of the application's: called to start and to stop, never for a request.
public sealed class Host : MarshalByRefObject {
    /// How long requests under way and Application_End may take when the process is to end. The
    /// gateway has waited for requests before it asks for the end.
    public const int StopTime = 8000;

    int listener;

    /// A lease that ran out would end the host after five minutes.
    public override object InitializeLifetimeService() { return null; }

    public void Start(string socket, string directory, string virtualPath, int threads) {
        FillEncodings();
        Application.Set(directory, virtualPath);
        AppDomain.CurrentDomain.DomainUnload += (sender, e) => EndWithDomain();
        listener = Native.Listen(socket);
        for (int n = 0; n < threads; n++) {
            var thread = new Thread(() => Connection.TakeAll(listener));
            thread.IsBackground = true;
            thread.Start();
        }
    }

    /// Waits for requests under way, then lets the application run its Application_End.
    public void Stop() {
        Application.StopRequests(StopTime);
        Application.End();
    }

    /// The application is unloaded by itself: by HttpRuntime.UnloadAppDomain, or because a file changed
    /// before the first request. A new process is cleaner than a new domain in this one. The exit code
    /// tells the gateway that nothing has crashed.
    static void EndWithDomain() {
        Application.StopRequests(StopTime);
        Native._exit(0);
    }

    /// Mono fills its table of encodings as they are asked for, which other threads can see half done:
    /// "No data is available for encoding 65001". So what is common is asked for by one thread.
    static void FillEncodings() {
        var names = new[] { "utf-8", "UTF-8", "utf8", "us-ascii", "ascii", "iso-8859-1", "ISO-8859-1",
            "latin1", "utf-16", "unicode", "windows-1252", "utf-32" };
        foreach (string name in names) {
            try {
                var encoding = Encoding.GetEncoding(name);
                var used = encoding.WebName + encoding.HeaderName + encoding.BodyName
                    + encoding.EncodingName + encoding.WindowsCodePage;
                GC.KeepAlive(used);
            } catch (ArgumentException) {
                // Its assembly is not installed.
            } catch (NotSupportedException) {
            }
        }
    }
}

/// The application as a whole.
static class Application {
    /// Its directory, with a slash at the end.
    public static string Directory { get; private set; }
    /// Its virtual path, without a slash at the end unless it is the root.
    public static string VirtualPath { get; private set; }

    static int underWay;
    static volatile bool isEnding;
    static int isWatched = 1;

    /// System.Web gives each request a timer of 110 s (executionTimeout) that leads to all of it, and
    /// disposes of it in time. But mono's scheduler of timers drops the disposed ones only when another
    /// is due, so that each request stayed in memory, 5 KB of it, for up to two minutes: 500 MB at 1,000
    /// requests a second. A timer that is due at once, after so many requests, has it look.
    const int SweepPeriod = 128;
    static readonly Timer sweep = new Timer(_ => { });
    static int answered;

    public static void Set(string directory, string virtualPath) {
        Directory = directory.TrimEnd('/') + "/";
        VirtualPath = virtualPath;
    }

    /// Whether it starts no more requests; those that came are told to try elsewhere.
    public static bool IsEnding { get { return isEnding; } }

    public static void BeginRequest() { Interlocked.Increment(ref underWay); }

    public static void EndRequest() {
        Interlocked.Decrement(ref underWay);
        if (Interlocked.Increment(ref answered) % SweepPeriod == 0) sweep.Change(0, Timeout.Infinite);
        if (isWatched == 1 && Interlocked.Exchange(ref isWatched, 0) == 1) StopWatching();
    }

    public static void StopRequests(int milliseconds) {
        isEnding = true;
        var deadline = DateTime.UtcNow.AddMilliseconds(milliseconds);
        while (Volatile.Read(ref underWay) > 0 && DateTime.UtcNow < deadline) Thread.Sleep(5);
    }

    /// Fires Application_End.
    public static void End() {
        Call("Dispose");
    }

    /// ASP.NET's own watch over web.config, bin and Global.asax unloads the domain at once, with the
    /// requests in it. Forebay watches the same files, and starts a new process first. Pages are
    /// watched by something else, and compiled anew when they change.
    static void StopWatching() {
        Call("DisableWatchers");
    }

    /// A method of the factory of applications, which is internal to System.Web. Where there is none
    /// ASP.NET goes on by its own rules.
    static void Call(string name) {
        try {
            var factory = typeof(HttpRuntime).Assembly.GetType("System.Web.HttpApplicationFactory");
            var flags = BindingFlags.Static | BindingFlags.Public | BindingFlags.NonPublic;
            var method = factory == null ? null : factory.GetMethod(name, flags, null, Type.EmptyTypes, null);
            if (method != null) method.Invoke(null, null);
        } catch (TargetInvocationException error) {
            Console.Error.WriteLine(error.InnerException);
        }
    }
}

/// The system calls on sockets. Objects of System.Net.Sockets cost more for each call, and mono has none
/// for Unix sockets without Mono.Posix.
static unsafe class Native {
    const int AF_UNIX = 1, SOCK_STREAM = 1, SOCK_CLOEXEC = 0x80000, MSG_NOSIGNAL = 0x4000;
    const int MSG_PEEK = 2, MSG_DONTWAIT = 0x40, EINTR = 4, EAGAIN = 11, ECONNABORTED = 103;
    const int Backlog = 4096, LongestPath = 107;

    [DllImport("libc")] public static extern void _exit(int code);
    [DllImport("libc", SetLastError = true)] static extern int socket(int family, int type, int protocol);
    [DllImport("libc", SetLastError = true)] static extern int bind(int fd, byte[] address, int length);
    [DllImport("libc", SetLastError = true)] static extern int listen(int fd, int backlog);
    [DllImport("libc", SetLastError = true)]
    static extern int accept4(int fd, IntPtr address, IntPtr length, int flags);
    [DllImport("libc", SetLastError = true)]
    static extern IntPtr recv(int fd, byte* buffer, IntPtr length, int flags);
    [DllImport("libc", SetLastError = true)]
    static extern IntPtr send(int fd, byte* buffer, IntPtr length, int flags);
    [DllImport("libc")] static extern int close(int fd);

    /// Listens on a Unix socket at `path`.
    public static int Listen(string path) {
        byte[] name = Encoding.UTF8.GetBytes(path);
        if (name.Length > LongestPath) throw new IOException("the path of the socket is too long");
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        // The family, in the order of the machine: all that mono runs on here has the low byte first.
        var address = new byte[2 + name.Length + 1];
        address[0] = AF_UNIX;
        Buffer.BlockCopy(name, 0, address, 2, name.Length);
        if (fd < 0 || bind(fd, address, address.Length) != 0 || listen(fd, Backlog) != 0) {
            throw new IOException("cannot listen on " + path + ": error " + Marshal.GetLastWin32Error());
        }
        return fd;
    }

    public static int Accept(int listener) {
        while (true) {
            int fd = accept4(listener, IntPtr.Zero, IntPtr.Zero, SOCK_CLOEXEC);
            if (fd >= 0) return fd;
            int error = Marshal.GetLastWin32Error();
            // No file left to open, for example: others may be closed meanwhile.
            if (error != EINTR && error != ECONNABORTED) Thread.Sleep(10);
        }
    }

    /// Reads some bytes; 0 at the end, and where the connection broke.
    public static int Receive(int fd, byte[] buffer, int offset, int count) {
        fixed (byte* start = buffer) {
            while (true) {
                long n = (long) recv(fd, start + offset, (IntPtr) count, 0);
                if (n >= 0) return (int) n;
                if (Marshal.GetLastWin32Error() != EINTR) return 0;
            }
        }
    }

    /// Sends all bytes; false where the other side is gone.
    public static bool Send(int fd, byte[] buffer, int count) {
        fixed (byte* start = buffer) {
            int sent = 0;
            while (sent < count) {
                long n = (long) send(fd, start + sent, (IntPtr) (count - sent), MSG_NOSIGNAL);
                if (n >= 0) sent += (int) n;
                else if (Marshal.GetLastWin32Error() != EINTR) return false;
            }
        }
        return true;
    }

    /// Whether the other side has not closed the connection.
    public static bool IsOpen(int fd) {
        byte* one = stackalloc byte[1];
        long n = (long) recv(fd, one, (IntPtr) 1, MSG_PEEK | MSG_DONTWAIT);
        if (n > 0) return true;
        return n < 0 && (Marshal.GetLastWin32Error() == EAGAIN || Marshal.GetLastWin32Error() == EINTR);
    }

    public static void Close(int fd) { close(fd); }
}

}
