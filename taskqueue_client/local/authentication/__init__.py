"""Who calls, and what they may: Hawk headers, bewits, certificates, clients, roles and scopes."""
