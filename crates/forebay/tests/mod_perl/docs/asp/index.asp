<% my $name = $Request->QueryString('name') || 'nobody'; $Response->Cookies('seen', 'yes'); %>
<p>Hello <%= $Server->HTMLEncode($name) %></p>
<% for (1 .. 3) { %><li><%= $_ * 2 %></li><% } %>
<% $Response->AddHeader('X-One', 'a'); %>
