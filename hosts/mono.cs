// Runs one ASP.NET application, and answers its requests over FastCGI on a Unix socket.
//
//     forebay-mono.exe SOCKET DIRECTORY VIRTUAL-PATH THREADS
//
// The sockets and the parser are inside the application's domain (AppDomain). So a request never
// crosses the border between two domains, and needs no remoting. Each thread takes one connection,
// and answers one request after another on it. The gateway opens no more connections than there are
// threads.
//
// `mcs -unsafe -r:System.Web -r:Mono.Posix` compiles this file together with those in mono/.

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
        // Asynchronous handlers run on this pool; mono adds threads slowly above the minimum.
        ThreadPool.SetMinThreads(threads, 4);
        // Handles SIGTERM before the application's domain exists. Otherwise this signal would end
        // the process during the start.
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
            // The domain was unloaded. EndWithDomain ends the process after its requests.
            Thread.Sleep(Host.StopTime);
        }
        Native._exit(0);
        return 0;
    }
}

/// The default domain's handle on the application's domain. The host starts and stops the
/// application, and takes no part in requests.
public sealed class Host : MarshalByRefObject {
    /// Time limit for running requests and Application_End when the process has to end. The gateway
    /// has already waited for requests before it asks for the end.
    public const int StopTime = 8000;

    int listener;

    /// Disables the lease, which would end the host after five minutes.
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

    /// Waits for running requests, then runs the application's Application_End.
    public void Stop() {
        Application.StopRequests(StopTime);
        Application.End();
    }

    /// Ends the process after the application has been unloaded: by HttpRuntime.UnloadAppDomain, or
    /// because a file changed before the first request. A new process is cleaner than a new domain
    /// in this one. Exit code 0 shows the gateway that nothing has crashed.
    static void EndWithDomain() {
        Application.StopRequests(StopTime);
        Native._exit(0);
    }

    /// Loads the common encodings in one thread. Mono fills its table of encodings on demand, and
    /// other threads can see a half-filled table: "No data is available for encoding 65001".
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
                // The assembly of this encoding is not installed.
            } catch (NotSupportedException) {
            }
        }
    }
}

/// The application as a whole.
static class Application {
    /// The application's directory, with a slash at the end.
    public static string Directory { get; private set; }
    /// The application's virtual path, without a slash at the end unless it is the root.
    public static string VirtualPath { get; private set; }

    static int underWay;
    static volatile bool isEnding;
    static int isWatched = 1;

    /// A timer that wakes mono's scheduler of timers after every SweepPeriod requests. System.Web
    /// gives each request a timer of 110 s (executionTimeout), which refers to all objects of the
    /// request. System.Web disposes of the timer in time. But mono drops disposed timers only when
    /// another timer is due. So each request stayed in memory (5 KB) for up to two minutes: 500 MB
    /// at 1,000 requests a second.
    const int SweepPeriod = 128;
    static readonly Timer sweep = new Timer(_ => { });
    static int answered;

    public static void Set(string directory, string virtualPath) {
        Directory = directory.TrimEnd('/') + "/";
        VirtualPath = virtualPath;
    }

    /// True if the application starts no more requests. The application refuses later requests, and
    /// the gateway tries another process.
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

    /// Stops ASP.NET's own watcher of web.config, bin and Global.asax. On a change, this watcher
    /// would unload the domain at once, together with its requests. Forebay watches these files and
    /// starts a new process first. Another watcher handles pages, which are compiled again when
    /// they change.
    static void StopWatching() {
        Call("DisableWatchers");
    }

    /// Calls a method of the factory of applications, which is internal to System.Web. If the
    /// method is missing, ASP.NET follows its own rules.
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

/// System calls on sockets. System.Net.Sockets costs more per call, and mono supports Unix sockets
/// only with Mono.Posix.
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
        // The address family is in the machine's byte order. All machines that this host supports
        // are little-endian.
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
            // For example, no descriptor is free. Another thread may close one meanwhile.
            if (error != EINTR && error != ECONNABORTED) Thread.Sleep(10);
        }
    }

    /// Reads some bytes. Returns 0 at the end, or if the connection broke.
    public static int Receive(int fd, byte[] buffer, int offset, int count) {
        fixed (byte* start = buffer) {
            while (true) {
                long n = (long) recv(fd, start + offset, (IntPtr) count, 0);
                if (n >= 0) return (int) n;
                if (Marshal.GetLastWin32Error() != EINTR) return 0;
            }
        }
    }

    /// Sends all bytes. Returns false if the peer has closed the connection.
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

    /// Returns true if the peer has not closed the connection.
    public static bool IsOpen(int fd) {
        byte* one = stackalloc byte[1];
        long n = (long) recv(fd, one, (IntPtr) 1, MSG_PEEK | MSG_DONTWAIT);
        if (n > 0) return true;
        return n < 0 && (Marshal.GetLastWin32Error() == EAGAIN || Marshal.GetLastWin32Error() == EINTR);
    }

    public static void Close(int fd) { close(fd); }
}

}
