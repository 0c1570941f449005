<% $Response->Redirect("/elsewhere"); %>
