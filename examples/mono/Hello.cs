// site/hello.ashx as a program that listens by itself:
//   mcs -r:System.Web.Extensions Hello.cs && mono Hello.exe PORT
// With PORT 0 it takes a free port, and writes it to the file named by the next argument.
using System;
using System.IO;
using System.Net;
using System.Net.Sockets;
using System.Text;
using System.Threading;
using System.Web.Script.Serialization;

static class Hello {
    public class Response { public string Result { get; set; } }

    static void Main(string[] arguments) {
        int port = int.Parse(arguments[0]);
        bool isChosen = port == 0;
        if (isChosen) port = FreePort();
        var listener = new HttpListener();
        listener.Prefixes.Add("http://127.0.0.1:" + port + "/");
        // A client that disconnects must not end the program.
        listener.IgnoreWriteExceptions = true;
        listener.Start();
        if (isChosen) File.WriteAllText(arguments[1], port.ToString());
        while (true) {
            var context = listener.GetContext();
            ThreadPool.QueueUserWorkItem(_ => Answer(context));
        }
    }

    static int FreePort() {
        var probe = new TcpListener(IPAddress.Loopback, 0);
        probe.Start();
        int port = ((IPEndPoint) probe.LocalEndpoint).Port;
        probe.Stop();
        return port;
    }

    static void Answer(HttpListenerContext context) {
        var answer = new Response { Result = "Hello, " + context.Request.QueryString["name"] };
        var text = Encoding.UTF8.GetBytes(new JavaScriptSerializer().Serialize(answer));
        context.Response.ContentType = "application/json";
        context.Response.ContentLength64 = text.Length;
        context.Response.OutputStream.Write(text, 0, text.Length);
        context.Response.Close();
    }
}
