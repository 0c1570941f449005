<%@ page session="false" trimDirectiveWhitespaces="true" %><%
byte[] piece = new byte[Integer.parseInt(request.getParameter("piece"))];
long sum = 0; int n;
java.io.InputStream from = request.getInputStream();
while ((n = from.read(piece)) > 0) sum += n;
%><%= sum %>
