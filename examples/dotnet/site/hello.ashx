<%@ WebHandler Language="C#" Class="Hello" %>
using System.Web;

// A handler of ASP.NET: compiled at its first request, and anew when this file changes.
public class Hello : IHttpHandler {
    public bool IsReusable { get { return true; } }

    public void ProcessRequest(HttpContext context) {
        context.Response.ContentType = "text/plain; charset=utf-8";
        if (context.Request.HttpMethod == "POST") {
            context.Response.Write(context.Request.ContentLength + " bytes\n");
            return;
        }
        context.Response.Write("Hello " + context.Request.QueryString["n"] + " from ASP.NET\n");
    }
}
