<% $Session->{count}++; %><p><%= $Session->{count} %></p>
