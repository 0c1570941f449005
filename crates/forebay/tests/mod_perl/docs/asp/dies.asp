<% die "a reason to die"; %>
