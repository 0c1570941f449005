<%@ page session="false" contentType="text/plain" trimDirectiveWhitespaces="true" %><%
int n = Integer.parseInt(request.getParameter("n"));
int ms = Integer.parseInt(request.getParameter("ms"));
for (int line = 0; line < n; line++) {
    Thread.sleep(ms);
    out.println("line " + line);
    out.flush();
}
%>
