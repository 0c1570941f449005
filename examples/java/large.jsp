<%@ page session="false" trimDirectiveWhitespaces="true" %><%
byte[] piece = new byte[32768];
long left = Long.parseLong(request.getParameter("mb")) << 20;
response.setContentType("application/octet-stream");
response.setContentLengthLong(left);
java.io.OutputStream to = response.getOutputStream();
for (; left > 0; left -= piece.length) to.write(piece);
%>
