<%@ WebHandler Language="C#" Class="Hello" %>
using System.Web;
using System.Web.Script.Serialization;

// As ServiceStack's hello: a typed answer, serialised to JSON.
public class Hello : IHttpHandler {
    public class Response { public string Result { get; set; } }

    public bool IsReusable { get { return true; } }

    public void ProcessRequest(HttpContext context) {
        context.Response.ContentType = "application/json";
        var answer = new Response { Result = "Hello, " + context.Request.QueryString["name"] };
        context.Response.Write(new JavaScriptSerializer().Serialize(answer));
    }
}
