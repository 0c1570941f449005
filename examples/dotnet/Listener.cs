// A web application that listens by itself:  mcs Listener.cs && mono Listener.exe 8100
// Forebay starts it with site.toml.
using System;
using System.Net;
using System.Text;
using System.Threading;

static class Listener {
    static void Main(string[] arguments) {
        var listener = new HttpListener();
        listener.Prefixes.Add("http://127.0.0.1:" + arguments[0] + "/");
        // A client that disconnects must not end the program.
        listener.IgnoreWriteExceptions = true;
        listener.Start();
        Console.WriteLine("listening");
        while (true) {
            var context = listener.GetContext();
            ThreadPool.QueueUserWorkItem(_ => Answer(context));
        }
    }

    static void Answer(HttpListenerContext context) {
        var text = Encoding.UTF8.GetBytes("Hello from .NET at " + context.Request.RawUrl + "\n");
        context.Response.ContentType = "text/plain; charset=utf-8";
        context.Response.ContentLength64 = text.Length;
        context.Response.OutputStream.Write(text, 0, text.Length);
        context.Response.Close();
    }
}
