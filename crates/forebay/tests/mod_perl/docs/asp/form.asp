<p><%= $Request->Form("name") %> <%= $Request->Form("n") * 2 %> <%= $Request->ServerVariables("REQUEST_METHOD") %></p>
