"""Authentication and authorization: Hawk headers, bewits, certificates, clients, roles and scopes."""
